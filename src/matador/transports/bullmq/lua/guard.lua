-- In front of each of BullMQ's scripts. They trust what they find and change things step by step: one
-- malformed value makes them fail half-way, and the jobs they handle are lost. Here their calls of the
-- server go through a guard:
--   * a job for the waiting list of a paused queue goes where BullMQ 5 keeps it meanwhile;
--   * a key of a job that has another type counts as missing, and is left alone;
--   * a counter that is not a number starts again, and so does a rate limit that is none;
--   * an id that cannot be a job's is replaced by a job that says so;
--   * a parent that cannot be read is ignored;
--   * an event that cannot be written is ignored.
local redis, cjson = (function(server, json)
  -- Whether a queue has such a key beside its jobs: no job can have that id.
  local function is_own(id)
    return #id <= 16 and ({@KEYS@})[id]
  end

  -- The list where jobs of a queue wait. BullMQ 5 renames it when it pauses and resumes, and loses what
  -- is under the new name by then; BullMQ 6 resumes with the jobs of both.
  local places = {} -- no script changes this for a queue in which it puts jobs
  local function find_waiting(queue)
    local wait, paused = queue .. 'wait', queue .. 'paused'
    if server.call('HEXISTS', queue .. 'meta', 'paused') == 0 then return wait end
    if server.call('EXISTS', paused) == 0 then
      if server.call('EXISTS', wait) == 1 then server.call('RENAME', wait, paused) end
    else
      repeat until not server.call('RPOPLPUSH', wait, paused)
    end
    return paused
  end
  local function waiting(queue)
    if not places[queue] then places[queue] = find_waiting(queue) end
    return places[queue]
  end

  -- The id of a job: this one, or that of a new job that replaces an impossible one.
  local function admit(queue, id)
    local kind = server.call('TYPE', queue .. id).ok
    if (kind == 'hash' or kind == 'none') and not is_own(id) then return id end
    local new = 'matador-odd-' .. server.call('INCR', queue .. 'id')
    local data = kind == 'string' and not is_own(id) and server.call('GET', queue .. id) or ''
    local problem = 'job id "' .. id .. '": not the key of a job, its type is ' .. kind
    server.call('HSET', queue .. new, 'name', '', 'data', data, 'matador-problem', problem)
    return new
  end

  -- The reply of a call that failed; if there is none to give, it fails once more.
  local function without(said, command, key, ...)
    local first, second = ...
    local empty = { -- for a key that is missing
      HMGET = {}, HGETALL = {}, HGET = false, HEXISTS = 0, HSET = 0, HMSET = 0, HDEL = 0,
      HINCRBY = 0, GET = false, ZSCORE = false, ZCARD = 0, SCARD = 0, SREM = 0,
    }
    if command == 'XADD' or command == 'XTRIM' then return false end
    if string.find(said, 'WRONGTYPE', 1, true) then
      if empty[command] ~= nil then return empty[command] end
    elseif command == 'HINCRBY' and
      (string.find(said, 'integer', 1, true) or string.find(said, 'overflow', 1, true)) then
      server.call('HSET', key, first, second)
      return tonumber(second)
    elseif command == 'ZADD' and string.find(said, 'valid float', 1, true) then
      return server.call('ZADD', key, 0, second)
    end
    return server.call(command, key, ...)
  end

  local function look(command, key, ...)
    if (command == 'LPUSH' or command == 'RPUSH') and string.sub(key, -5) == ':wait' then
      return server.call(command, waiting(string.sub(key, 1, -5)), ...)
    end
    if command == 'HSET' and (...) == 'delay' or command == 'HINCRBY' and (...) == 'stc' then
      local name = string.match(string.sub(key, -17), ':([^:]*)$')
      if name and is_own(name) then return 0 end
    end
    if command == 'HSET' and (...) == 'defa' and #ARGV >= 8 then -- a parent fails with its child: say why
      return server.call('HSET', key, 'defa', select(2, ...) .. ': ' .. string.sub(ARGV[4], 1, 1000))
    end
    local answer = server.pcall(command, key, ...)
    if command == 'GET' and string.sub(key, -8) == ':limiter' and type(answer) == 'string' then
      return tonumber(answer) and answer
    elseif command == 'INCR' and string.sub(key, -8) == ':limiter' and answer ~= 1 and
      (type(answer) == 'table' or server.call('PTTL', key) < 0) then -- it would never end
      server.call('SET', key, 1)
      return 1
    end
    if type(answer) == 'table' then
      if answer.err then return without(answer.err, command, key, ...) end
      if command == 'HMGET' and (...) == 'paused' then -- settings of a queue; all others are numbers
        for index = 2, #answer do answer[index] = tonumber(answer[index]) and answer[index] end
      elseif command == 'HMGET' and (...) == 'parentKey' and answer[1] then
        -- Searching a long text without a colon for the parent's id would take minutes.
        answer[1] = string.find(answer[1], ':', 1, true) and answer[1]
      elseif command == 'ZPOPMIN' and answer[1] then
        answer[1] = admit(string.sub(key, 1, -#'prioritized' - 1), answer[1])
      end
    elseif command == 'RPOPLPUSH' and answer then
      local id = admit(string.sub(key, 1, -#'wait' - 1), answer)
      if id ~= answer then server.call('LSET', (...), 0, id) end
      return id
    end
    return answer
  end

  -- What BullMQ's scripts do again for each of many jobs of a queue, although nothing changes for it
  -- meanwhile: done once. Names what was done; nil: it is done each time.
  local function repeated(command, key, ...)
    local first, second = ...
    if command == 'XTRIM' or command == 'HGET' and first == 'opts.maxLenEvents' -- of events
      or command == 'ZADD' and first == 0 and second == '0' -- the marker
      or command == 'ZRANGEBYSCORE' and string.sub(key, -8) == ':delayed' then
      return command .. key
    elseif command == 'HMGET' and first == 'paused' then -- some scripts read more settings than others
      return key .. select('#', ...)
    end
  end

  local many, answers = @MANY@, {}
  local looked_at = {
    LPUSH = true, RPUSH = true, HSET = true, HINCRBY = true, GET = true, INCR = true, HMGET = true,
    ZPOPMIN = true, RPOPLPUSH = true, XTRIM = many, HGET = many, ZADD = many, ZRANGEBYSCORE = many,
  }
  local function call(command, key, ...)
    if not looked_at[command] then
      local answer = server.pcall(command, key, ...)
      if type(answer) == 'table' and answer.err then
        return without(answer.err, command, key, ...)
      end
      return answer
    end
    local name = many and repeated(command, key, ...)
    if not name then return look(command, key, ...) end
    local answer = answers[name]
    if answer == nil then
      answer = look(command, key, ...)
      if answer and (command ~= 'ZRANGEBYSCORE' or #answer == 0) then answers[name] = answer end
    end
    return answer
  end

  -- A parent that cannot be read is ignored.
  local function decode(text)
    local done, found = pcall(json.decode, text)
    if not done or type(found) ~= 'table' then found = {} end
    for _, name in ipairs({'id', 'queueKey'}) do
      local kind = type(found[name])
      if kind ~= 'nil' and kind ~= 'string' and kind ~= 'number' then found[name] = nil end
    end
    return setmetatable(found, {__index = {id = '', queueKey = ''}})
  end

  return setmetatable({call = call}, {__index = server}),
    setmetatable({decode = decode}, {__index = json})
end)(redis, cjson)
