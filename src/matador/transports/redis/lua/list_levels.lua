-- A list has no priorities.
return 1
