--- bytes_text(n): Returns n bytes as text for people, in decimal units: "12 B", "3.4 MB".
return function(n)
  for _, unit in ipairs {"B", "kB", "MB", "GB"} do
    if n < 1000 then return (unit == "B" and "%d %s" or "%.1f %s"):format(n, unit) end
    n = n / 1000
  end
  return ("%.1f TB"):format(n)
end
