-- The number of the bindings, the exchanges and the bindings.
return {
  redis.call('HGET', routes, 'number') or '',
  redis.call('HGETALL', routes .. ':exchanges'),
  redis.call('HGETALL', routes .. ':bindings'),
}
