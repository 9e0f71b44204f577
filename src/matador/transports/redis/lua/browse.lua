-- Entries of one lane from an id on. ARGV: lane, first id, count. Returns: the id up to which the lane
-- was delivered, {id, consumer, claim, uncounted} of those that are held or were released, the entries.
-- nil: no such queue.
local base, lane = KEYS[1], ARGV[1]
local queue = settings(base)
if not queue then
  return nil
end
tidy(base, queue)
local key = base .. ':' .. lane
if redis.call('EXISTS', key) == 0 then
  return { '0-0', {}, {} }
end
local entries = redis.pcall('XRANGE', key, ARGV[2], '+', 'COUNT', ARGV[3])
if failed(entries) then
  if redis.call('TYPE', key).ok == 'stream' then
    entries = {} -- from behind the highest possible id
  else
    return entries
  end
end
local held = {}
if #entries > 0 then
  local first, last = entries[1][1], entries[#entries][1]
  for place, row in ipairs(grouped(key, 'XPENDING', key, GROUP, first, last, #entries)) do
    held[place] = { row[1], row[2], row[4], uncounted(base, lane, row[1]) }
  end
end
return { group_of(key)['last-delivered-id'], held, entries }
