-- Remove a consumer: what it still holds goes back, counted. ARGV: its name ('' for none). Returns 1
-- if that was all.
local consumer = ARGV[1]
if not take_back(base, consumer) then
  return 0
end
redis.call('ZREM', base .. ':consumers', consumer)
redis.call('ZREM', base .. ':gone', consumer)
return 1
