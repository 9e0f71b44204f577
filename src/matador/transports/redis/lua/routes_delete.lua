-- Delete queues. KEYS: the routes, then those of the queues. ARGV: '1' for temporary ones that have expired,
-- and only those; then the names.
for place = 2, #KEYS do
  local name, key = ARGV[place], KEYS[place]
  if ARGV[1] ~= '1' or has_expired(key) or redis.call('EXISTS', key) == 0 then
    drop(name, key)
  elseif redis.call('HEXISTS', key, 'expires') == 0 then -- it is not temporary any more
    redis.call('HDEL', routes .. ':temporary', name)
  end
end
return 1
