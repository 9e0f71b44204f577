-- Create a queue, or update its settings. ARGV: priorities, retention, max_length, ttl (milliseconds;
-- empty: none). Lanes once created stay, so that nothing in them is lost.
local levels = number(redis.call('HGET', base, 'levels'), 1, HIGHEST + 1) or 1
if ARGV[1] == '1' then
  levels = HIGHEST + 1
end
redis.call('HSET', base, 'levels', levels, 'priorities', ARGV[1], 'retention', ARGV[2],
  'max_length', ARGV[3], 'ttl', ARGV[4])
for _, lane in ipairs(lanes({ levels = levels })) do
  local made = create_group(base .. ':' .. lane)
  if made.err and string.sub(made.err, 1, 9) ~= 'BUSYGROUP' then
    return made
  end
end
return levels
