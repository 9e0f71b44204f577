-- Finish deliveries of one consumer in one lane, held by a claim of one number. ARGV: lane, consumer,
-- claim, ids ... Returns the indexes, from 0, of those that are not held by it any more.
local lane, consumer, claim = ARGV[1], ARGV[2], tonumber(ARGV[3])
local key = base .. ':' .. lane
local held, ids, lost = {}, {}, {}
if #ARGV < 8 then
  for place = 4, #ARGV do
    local by, count = holder(key, ARGV[place])
    if by == consumer then
      held[ARGV[place]] = count
    end
  end
else
  for _, row in ipairs(grouped(key, 'XPENDING', key, GROUP, '-', '+', 1000000, consumer)) do
    held[row[1]] = row[4]
  end
end
for place = 4, #ARGV do
  local id = ARGV[place]
  if held[id] == claim then
    held[id] = nil
    ids[#ids + 1] = id
  else
    lost[#lost + 1] = place - 4
  end
end
if queue and queue.retention then
  local readable_until = string.format('%.0f', now() + queue.retention)
  in_chunks(ids, function(...)
    redis.call('XACK', key, GROUP, ...)
  end)
  for _, id in ipairs(ids) do
    if failed(redis.pcall('ZADD', base .. ':done', readable_until, lane .. ':' .. id)) then
      redis.call('XDEL', key, id) -- nothing would ever delete it
    end
  end
  forget_uncounted(base, lane, ids)
  pcall(expire, base, queue)
else
  remove(base, lane, ids)
end
return lost
