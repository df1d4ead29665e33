// The search takes each word of a query as a prefix, so that "a" is found nearly everywhere: leave such words out.
const small = new Set(("a an and are as at be by can do does for from get how i if in is it me my of on or own that the "
  + "there this to was what when where which why will with").split(" "))
const postMessage = Worker.prototype.postMessage
Worker.prototype.postMessage = function (message, ...rest) {
  if (typeof message?.data === "string") {
    const words = message.data.replace(/[?!,;:/]+(?=\s|$)/g, "").split(/\s+/)
    const kept = words.filter(word => !small.has(word.toLowerCase()))
    message = { ...message, data: (kept.length ? kept : words).join(" ") }
  }
  return postMessage.call(this, message, ...rest)
}
