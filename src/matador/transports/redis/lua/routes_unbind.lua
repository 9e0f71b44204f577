-- Remove a binding. ARGV: queue, exchange, pattern.
local left = {}
local bindings = bindings_of(ARGV[1])
for _, one in ipairs(bindings) do
  if one[1] ~= ARGV[2] or one[2] ~= ARGV[3] then
    left[#left + 1] = one
  end
end
if #left < #bindings then
  save_bindings(ARGV[1], left)
end
return 1
