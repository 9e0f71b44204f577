-- In front of the scripts that need their queue: they return nil if it does not exist.
if not queue then
  return nil
end
