// Browsers give pages from the disk no workers: there the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  const inside = `
    const home = parent;
    postMessage = data => home.dispatchEvent(new home.MessageEvent("message", { data, source: self }));
    importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
      const script = document.createElement("script");
      Object.assign(script, { src: url, onload: done, onerror: failed });
      document.body.appendChild(script);
    })), Promise.resolve());`;

  window.Worker = window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<body><script>${inside}</${"script"}><script src="${new URL(url, document.baseURI)}"></${"script"}></body>`;
      this.loaded = new Promise(done => { frame.onload = () => done(frame.contentWindow); });
      addEventListener("message", event => {
        if (event.source === frame.contentWindow)
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      document.body.appendChild(frame);
    }

    postMessage(data) {
      this.loaded.then(frame => frame.dispatchEvent(new frame.MessageEvent("message", { data })));
    }
  };
}
