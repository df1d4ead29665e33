// Prepares a query for the search, which takes each word as a prefix, any of which may match:
// - "a" is found nearly everywhere: small words are left out.
// - A hyphen parts words, and a letter alone is left out: "p" of "top-p" would be a prefix of "processes".
// - A name needs all its parts: "lm.where" becomes "+lm +where*", and "clip_grad_norm_" "+clip +grad +norm*".
{
  const small = new Set(("a an and are as at be by can do does for from get how i if in is it me my of on or own that the "
    + "there this to use used was what when where which why will with").split(" "))
  const postMessage = Worker.prototype.postMessage
  Worker.prototype.postMessage = function (message, ...rest) {
    if (typeof message?.data === "string") {
      const words = message.data.replace(/[?!,;:/()]+(?=\s|$)|(?<=^|\s)\(/g, "").replace(/(?<=\w)-/g, " ").split(/\s+/)
      const kept = words.filter(word => word && !small.has(word.toLowerCase()) && !/^\w$/.test(word))
      const terms = (kept.length ? kept : words).map(word =>
        /^[a-z]\w*[._:]\w/i.test(word) ? `+${word.replace(/:/g, ".").replace(/[._]+$/, "")}*` : word)
      message = { ...message, data: terms.join(" ") }
    }
    return postMessage.call(this, message, ...rest)
  }
}
