--- What a worker knows of itself: `channel`, to whoever started it; nil where the script itself runs.
return {}
