-- Entries of all lanes after a position. ARGV: id, rank of its lane (-1: its entry, too), count. Returns the
-- retention ('' for none), and for each lane: its name, the id up to which it was delivered, {id, consumer,
-- claim, uncounted} of those that are held or were released, the entries.
local id, rank, found = ARGV[1], tonumber(ARGV[2]), {}
tidy(base, queue)
for level = 0, queue.levels do
  local lane = level < queue.levels and tostring(level) or 't'
  local key = base .. ':' .. lane
  local entries = redis.pcall('XRANGE', key, level <= rank and '(' .. id or id, '+', 'COUNT', ARGV[3])
  if failed(entries) then
    local type = redis.call('TYPE', key).ok
    if type ~= 'stream' and type ~= 'none' then
      return entries
    end
    entries = {} -- from behind the highest possible id
  end
  if #entries > 0 then
    local held, first, last = {}, entries[1][1], entries[#entries][1]
    for place, row in ipairs(grouped(key, 'XPENDING', key, GROUP, first, last, #entries)) do
      held[place] = { row[1], row[2], row[4], uncounted(base, lane, row[1]) }
    end
    found[#found + 1] = { lane, delivered_up_to(key), held, entries }
  end
end
return { queue.retention or '', found }
