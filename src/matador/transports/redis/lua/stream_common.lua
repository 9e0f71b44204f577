-- Shared by the scripts of streams.
--
-- A queue is a hash with its settings. All its other keys begin with the name of that hash, and so
-- have its hash tag: a script stays within one slot of a cluster. Messages are in lanes, one stream
-- each: 't' for those taken out of turn, '10' to '1' for priorities where they are declared, and '0'.
-- Every lane has the consumer group GROUP. Released messages belong to the consumer NOBODY and look
-- idle for ever, so that they are found together with stale ones.
--
-- The delivery count that Redis keeps is the number of the claim: it only grows, so it tells one
-- holder from a later one. Deliveries that do not count are subtracted (':uncounted').
--
-- A paused queue has the field 'paused', and the groups of its lanes stand behind the highest id, so
-- that no read finds anything new, whoever reads. Where they stood is in the fields 'paused:LANE'. The
-- lane 't' is not read but claimed from, by a script that looks at the field.
--
-- The name of a consumer ends with its lease in milliseconds ('~30000'): stale messages are found by
-- the lease of their holder, not by that of whoever looks.

local GROUP = 'matador'
local NOBODY = '-'
local FOR_EVER = 1000000000000
local HIGHEST_ID = '18446744073709551615-18446744073709551615'
local HIGHEST = 10
local CHUNK = 1000
local MOST_FIELDS = 4000 -- names and values of one entry; Lua cannot unpack many more
local WORN_OUT = 1000000 -- replaces a delivery count that cannot be true

local function failed(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

local function settings(base)
  local found = redis.call('HMGET', base, 'levels', 'priorities', 'retention', 'max_length', 'ttl')
  if not found[1] then
    return nil
  end
  return {
    levels = number(found[1], 1, HIGHEST + 1) or 1,
    priorities = found[2] == '1',
    retention = number(found[3], 0, FOR_EVER),
    max_length = number(found[4], 0, FOR_EVER),
    ttl = number(found[5], 0, FOR_EVER),
  }
end

-- The key of the queue of a lane, and the name of the lane.
local function owner_of(key)
  return string.match(key, '^(.*):([^:]*)$')
end

local function is_paused(base)
  return redis.call('HEXISTS', base, 'paused') == 1
end

-- Create the group of a lane, and the lane.
local function create_group(key)
  local owner, lane = owner_of(key)
  -- From the first message on: nothing sent before there was a worker is skipped.
  local start = lane ~= 't' and is_paused(owner) and HIGHEST_ID or '0'
  return redis.pcall('XGROUP', 'CREATE', key, GROUP, start, 'MKSTREAM')
end

-- Call a command that needs the group of a lane, and create the group if the server has lost it.
local function grouped(key, ...)
  local reply = redis.pcall(...)
  if failed(reply) then
    if string.find(reply.err, 'NOGROUP', 1, true) or string.find(reply.err, 'no such key', 1, true) then
      create_group(key)
    end
    reply = redis.call(...)
  end
  return reply
end

local function lanes(queue)
  local names = { 't' }
  for level = queue.levels - 1, 0, -1 do
    names[#names + 1] = tostring(level)
  end
  return names
end

-- Call a command with many arguments in chunks: Lua cannot unpack them all.
local function in_chunks(items, call)
  for first = 1, #items, CHUNK do
    call(unpack(items, first, math.min(first + CHUNK - 1, #items)))
  end
end

-- Ids that grow across all lanes, so that a reader of the whole queue misses nothing.
local function next_id(base, queue)
  if queue.levels == 1 then
    return '*'
  end
  local last = redis.call('HMGET', base, 'last_ms', 'last_seq')
  local ms, seq = now(), 0
  local last_ms = number(last[1], 0, LATEST)
  if last_ms and ms <= last_ms then
    ms, seq = last_ms, (number(last[2], 0, FOR_EVER) or 0) + 1
  end
  redis.call('HSET', base, 'last_ms', ms, 'last_seq', seq)
  return string.format('%.0f-%d', ms, seq)
end

-- Add an entry to a lane; fields is a flat array of names and values. A foreign entry with very many
-- fields keeps body and reason as fields, and all of them in the field 'f'.
local function add(base, queue, lane, fields)
  if #fields > MOST_FIELDS then
    local few = { b = '', r = '' }
    for at = 1, #fields, 2 do
      few[fields[at]] = few[fields[at]] and fields[at + 1]
    end
    fields = { 'b', few.b, 'r', few.r, 'f', cmsgpack.pack(fields) }
  end
  local key, id = base .. ':' .. lane, next_id(base, queue)
  local added = redis.pcall('XADD', key, id, unpack(fields))
  if failed(added) then
    -- Perhaps somebody stored an entry with an id of the future: the server continues from there.
    redis.call('XADD', key, '*', unpack(fields))
  end
end

-- Store a message; fields is a flat array of names and values, delay is in milliseconds.
local function put(base, queue, delay, priority, fields)
  local level = 0
  if queue.priorities and priority ~= '' then
    level = math.max(0, math.min(HIGHEST, tonumber(priority)))
  end
  if delay <= 0 then
    add(base, queue, level, fields)
    return
  end
  local place = redis.call('HINCRBY', base, 'delayed', 1)
  delay_until(base, now() + delay, string.format('%016d', place) .. cmsgpack.pack({ level, fields }))
end

-- Level, fields and a unique name of a delayed message. A member of another form is a body and
-- nothing more.
local function delayed_of(member)
  local place = string.match(string.sub(member, 1, 16), '^%d+$')
  local read, found = pcall(cmsgpack.unpack, string.sub(member, 17))
  local fields = read and type(found) == 'table' and found[2]
  local ours = place and type(fields) == 'table' and #fields > 0 and #fields % 2 == 0
  for at = 1, ours and #fields or 0 do
    ours = ours and type(fields[at]) == 'string'
  end
  if ours then
    return number(found[1], 0, HIGHEST) or 0, fields, place
  end
  return 0, { 'b', member }, redis.sha1hex(member)
end

local function forget_uncounted(base, lane, ids)
  local key = base .. ':uncounted'
  if redis.call('EXISTS', key) == 1 then
    for _, id in ipairs(ids) do
      redis.pcall('HDEL', key, lane .. ':' .. id)
    end
  end
end

-- Remove entries of a lane, whoever holds them.
local function remove(base, lane, ids)
  local key = base .. ':' .. lane
  in_chunks(ids, function(...)
    redis.call('XACK', key, GROUP, ...)
    redis.call('XDEL', key, ...)
  end)
  forget_uncounted(base, lane, ids)
end

-- An id as a text of fixed length, for comparing: Lua has no numbers of that size.
local function rank(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

local function is_behind(id, other)
  return rank(id) > rank(other)
end

-- Drop dead letters beyond max_length, and those older than ttl, except those that somebody holds.
local function trim(base, queue)
  if not queue.max_length and not queue.ttl then
    return
  end
  local key, length, first = base .. ':0', nil, nil
  if queue.max_length then
    length = math.max(0, queue.max_length - redis.call('XLEN', base .. ':t'))
  end
  if queue.ttl then
    first = string.format('%.0f-0', now() - queue.ttl + 1)
  end
  local pending = grouped(key, 'XPENDING', key, GROUP)[1]
  local held, over, from = {}, length and redis.call('XLEN', key) - length or 0, '-'
  for _, row in ipairs(redis.call('XPENDING', key, GROUP, '-', '+', math.max(1, pending))) do
    held[row[1]] = row[2] ~= NOBODY
  end
  while over > 0 or first do
    local last, ids = over > 0 and '+' or '(' .. first, {}
    local entries = redis.call('XRANGE', key, from, last, 'COUNT', 100)
    if #entries == 0 then
      return
    end
    for _, entry in ipairs(entries) do
      if over > 0 or first and is_behind(first, entry[1]) then
        from = '(' .. entry[1]
        if not held[entry[1]] then
          ids[#ids + 1] = entry[1]
          over = over - 1
        end
      end
    end
    remove(base, '0', ids)
  end
end

-- Delete finished messages whose retention is over, a bounded number; returns how many.
local function expire(base, queue)
  if not queue.retention then
    return 0
  end
  local key = base .. ':done'
  local over = redis.call('ZRANGEBYSCORE', key, '-inf', now(), 'LIMIT', 0, CHUNK)
  for _, place in ipairs(over) do
    local lane, id = string.match(place, '^(%w+):(.*)$')
    if lane then
      redis.pcall('XDEL', base .. ':' .. lane, id)
    end
  end
  if #over > 0 then
    redis.call('ZREM', key, unpack(over))
  end
  return #over
end

-- Clean up; errors of it are ignored.
local function tidy(base, queue)
  pcall(trim, base, queue)
  local done, removed
  repeat
    done, removed = pcall(expire, base, queue)
  until not done or removed < CHUNK
end

-- Release an entry as if it had never been delivered.
local function give_back(base, lane, id)
  local key = base .. ':' .. lane
  redis.call('XCLAIM', key, GROUP, NOBODY, 0, id, 'IDLE', FOR_EVER, 'JUSTID')
  redis.pcall('HINCRBY', base .. ':uncounted', lane .. ':' .. id, 1)
end

-- Consumer, claim and idle time of the holder of an entry; nil if nobody holds it.
local function holder(key, id)
  local row = grouped(key, 'XPENDING', key, GROUP, id, id, 1)[1]
  if row then
    return row[2], row[4], row[3]
  end
end

-- A flat array of names and values as a table.
local function pairs_of(flat)
  local found = {}
  for place = 1, #flat, 2 do
    found[flat[place]] = flat[place + 1]
  end
  return found
end

-- Where the group of a lane stands; HIGHEST_ID in a paused queue.
local function group_id(key)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local found = pairs_of(group)
    if found['name'] == GROUP then
      return found['last-delivered-id']
    end
  end
  return '0-0'
end

-- The id up to which the messages of a lane were delivered.
local function delivered_up_to(key)
  local id = group_id(key)
  if id == HIGHEST_ID then
    local owner, lane = owner_of(key)
    local kept = string.match(redis.call('HGET', owner, 'paused:' .. lane) or '', '^%d+%-%d+$')
    local place, highest = kept and rank(kept) or '', rank(HIGHEST_ID)
    return #place == #highest and place < highest and kept or '0-0'
  end
  return id
end

local function uncounted(base, lane, id)
  return number(redis.pcall('HGET', base .. ':uncounted', lane .. ':' .. id), 0, FOR_EVER) or 0
end

-- The lease of a consumer in milliseconds; 'lease' if its name has none.
local function lease_of(consumer, lease)
  return number(string.match(consumer, '~(%d+)$'), 1, FOR_EVER) or lease
end

-- Entries that were released, or not renewed within the lease of their holder: rows of XPENDING in
-- order of their ids, at least 'most' of them if there are as many.
local function stale(key, lease, most)
  local rows, places = {}, {}
  for _, one in ipairs(grouped(key, 'XPENDING', key, GROUP)[4] or {}) do
    local idle = lease_of(one[1], lease)
    for _, row in ipairs(redis.call('XPENDING', key, GROUP, 'IDLE', idle, '-', '+', most, one[1])) do
      rows[#rows + 1] = row
      places[row] = rank(row[1])
    end
  end
  table.sort(rows, function(one, other)
    return places[one] < places[other]
  end)
  return rows
end

-- Claim an entry from whoever held it, with the next claim number. Returns a row of the script
-- 'claim'; nil if the entry was deleted.
local function take_over(base, lane, consumer, id, count)
  local key = base .. ':' .. lane
  local claim = number(count, 0, FOR_EVER) and count + 1 or WORN_OUT
  local entry = redis.call('XCLAIM', key, GROUP, consumer, 0, id, 'RETRYCOUNT', claim)[1]
  if entry then
    return { lane, id, entry[2], claim, uncounted(base, lane, id) }
  end
  redis.call('XACK', key, GROUP, id)
  forget_uncounted(base, lane, { id })
end

local base = KEYS[1]
local queue = settings(base)
