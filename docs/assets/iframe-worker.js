// Browsers refuse workers to pages from file://. There the search's worker runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.scope = frame.contentWindow
      const page = this.scope.document
      page.open()
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise(resolve => (this.scope.ready = resolve))
      page.write(`<script src="${url}" onload="ready()"></script>`)
      page.close()
    }

    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
