-- Release, retry or dead-letter. KEYS: the queue, then queues of successors. ARGV, for each: lane,
-- consumer, id, claim, index of the successor's queue in KEYS (0: release), delay, priority, reason,
-- number of fields, fields. A dead letter without fields keeps those of the original, with -1 its body
-- alone. Returns for each: 0 done, 1 lost, 2 no such queue, or why it failed.
local outcomes, targets, released = {}, {}, false

local function successor(key, id, place, count)
  if count > 0 then
    return { unpack(ARGV, place + 9, place + 8 + count) }
  end
  local entry = redis.call('XRANGE', key, id, id)[1]
  if not entry then
    return nil
  end
  local fields = count < 0 and { 'b', '' } or {}
  for at = 1, #entry[2], 2 do
    if count < 0 then
      fields[2] = entry[2][at] == 'b' and entry[2][at + 1] or fields[2]
    elseif entry[2][at] ~= 'r' then
      fields[#fields + 1] = entry[2][at]
      fields[#fields + 1] = entry[2][at + 1]
    end
  end
  return fields
end

local function settle(place, count)
  local lane, consumer, id = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  local key = base .. ':' .. lane
  local by, claim = holder(key, id)
  if by ~= consumer or claim ~= tonumber(ARGV[place + 3]) then
    return 1
  end
  local target = tonumber(ARGV[place + 4])
  if target == 0 then
    give_back(base, lane, id)
    released = true
    return 0
  end
  if not targets[target] then
    targets[target] = settings(KEYS[target])
    if not targets[target] then
      return 2
    end
  end
  local fields = successor(key, id, place, count)
  if not fields then
    return 1
  end
  if ARGV[place + 7] ~= '' then
    fields[#fields + 1] = 'r'
    fields[#fields + 1] = ARGV[place + 7]
  end
  put(KEYS[target], targets[target], tonumber(ARGV[place + 5]), ARGV[place + 6], fields)
  remove(base, lane, { id })
  return 0
end

local place = 1
while place <= #ARGV do
  local count = tonumber(ARGV[place + 8])
  local tried, outcome = pcall(settle, place, count)
  outcomes[#outcomes + 1] = tried and outcome or said(outcome)
  place = place + 9 + math.max(0, count)
end
for target, found in pairs(targets) do
  pcall(trim, KEYS[target], found)
end
if released then
  ring(base)
end
return outcomes
