-- Store messages in the queues that are bound to an exchange. KEYS: the routes, then those of the queues. ARGV:
-- the number of the bindings by which the queues were chosen, the names of the queues, whether all of them must
-- be there, then for each message: how many queues and which (from 1), delay, priority, number of fields, fields.
-- Returns nil if the bindings have changed, and {-1, the queues that are gone} if some are and must not be.
-- Otherwise, for each message: in how many queues it is stored, or why in none.
if (redis.call('HGET', routes, 'number') or '') ~= ARGV[1] then
  return nil
end

local queues, gone = {}, { -1 }
for place = 2, #KEYS do
  local key = KEYS[place]
  if has_expired(key) then
    drop(ARGV[place], key)
    queues[place - 1] = false
  else
    queues[place - 1] = settings(key) or false
    if not queues[place - 1] then
      gone[#gone + 1] = place - 1
    end
  end
end
if #gone > 1 and ARGV[#KEYS + 1] == '1' then
  return gone
end

-- Checked before anything is stored: all queues get a message, or none.
local function refused(chosen)
  for _, which in ipairs(chosen) do
    for _, lane in ipairs(lanes(queues[which])) do
      local kind = redis.call('TYPE', KEYS[which + 1] .. ':' .. lane).ok
      if kind ~= 'stream' and kind ~= 'none' then
        return 'WRONGTYPE ' .. KEYS[which + 1] .. ':' .. lane .. ' is not a stream'
      end
    end
  end
end

local sound = {} -- by the list of queues: nearly all messages of a batch have the same

local function store(chosen, delay, priority, fields)
  local list = table.concat(chosen, ' ')
  if sound[list] == nil then
    sound[list] = refused(chosen) or false
  end
  if sound[list] then
    return sound[list]
  end
  for _, which in ipairs(chosen) do
    local stored, why = pcall(put, KEYS[which + 1], queues[which], delay, priority, fields)
    if not stored then
      return said(why)
    end
  end
  return #chosen
end

local place, outcomes = #KEYS + 2, {}
while place <= #ARGV do
  local count, chosen = tonumber(ARGV[place]), {}
  for at = place + 1, place + count do
    local which = tonumber(ARGV[at])
    if queues[which] then
      chosen[#chosen + 1] = which
    end
  end
  place = place + count + 1
  local fields = { unpack(ARGV, place + 3, place + 2 + ARGV[place + 2]) }
  outcomes[#outcomes + 1] = #chosen == 0 and 0
    or store(chosen, tonumber(ARGV[place]), ARGV[place + 1], fields)
  place = place + 3 + ARGV[place + 2]
end
for which, queue in ipairs(queues) do
  if queue then
    pcall(trim, KEYS[which + 1], queue)
  end
end
return outcomes
