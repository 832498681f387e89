// A tour of the console in a real browser. Prints one line of JSON with what was found.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { open } from "./console.mjs";

const { base, credential, pages, account } = JSON.parse(readFileSync(0, "utf8"));
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const found = { violations: [], wide: [], complaints: [], strangers: [], visited: 0 };
const { browser, newPage, signIn } = await open(base);
const first = await signIn(credential);
const storageState = await first.context().storageState();
const signedIn = (viewport, more) => newPage(viewport, { storageState, ...more });

function watch(page) {
  page.on("console", (message) => message.type() === "error" && found.complaints.push(message.text()));
  page.on("pageerror", (error) => found.complaints.push(String(error)));
  page.on("request", (request) => request.url().startsWith(base) || found.strangers.push(request.url()));
}

async function inspect(page, path, scheme) {
  // Evaluated by the debugger, which no policy of the page concerns.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    axe.run(document, { resultTypes: ["violations"], iframes: false, runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  for (const { id, nodes } of violations) {
    found.violations.push(`${path} (${scheme}): ${id}: ${nodes.map((node) => node.html.slice(0, 160)).slice(0, 2).join(" | ")}`);
  }
}

// The first page stays open all the while, and should bring itself up to date.
watch(first);
await first.evaluate(() => { document.querySelector("#live-figures dl").dataset.old = "1"; });

const steps = {
  async everyPage() {
    const page = await signedIn();
    watch(page);
    for (const path of pages) {
      await page.setViewportSize({ width: 1280, height: 800 });
      await page.goto(base + path);
      await inspect(page, path, "light");
      for (const width of [1280, 400]) {
        await page.setViewportSize({ width, height: 800 });
        const more = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (more > 0) found.wide.push(`${path} at ${width}: ${more} px`);
      }
      found.visited += 1;
    }
    await page.context().close();
  },

  async dark() {
    const page = await signedIn({ width: 400, height: 800 }, { colorScheme: "dark" });
    watch(page);
    for (const path of pages.slice(0, 3)) {
      await page.goto(base + path);
      await inspect(page, path, "dark");
    }
    found.ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await page.context().close();
  },

  async axeFindsSomething() {
    const page = await newPage();
    await page.setContent("<html><body><img src='data:,'><input></body></html>");
    const before = found.violations.length;
    await inspect(page, "control", "light");
    found.control = found.violations.splice(before).length;
    await page.context().close();
  },

  async keyboard() {
    const page = await signedIn();
    await page.goto(`${base}/console`);
    const seen = [];
    for (let i = 0; i < 12; i += 1) {
      await page.keyboard.press("Tab");
      seen.push(await page.evaluate(() => document.activeElement.textContent.trim()));
    }
    found.tabs = seen;
    await page.context().close();
  },

  async token() {
    const page = await signedIn();
    watch(page);
    await page.goto(`${base}${account}/tokens`);
    await page.fill("#name", "from the browser");
    await page.click("text=Create API token");
    found.value = (await page.textContent("#value")).trim();
    await page.reload();
    found.valueAgain = await page.locator("#value").count();
    await page.context().close();
  },

  async limits() {
    const page = await signedIn();
    watch(page);
    await page.goto(`${base}${account}/limits/edit`);
    await page.fill("#requests_per_min", "77");
    await page.fill("#spend_per_month", "120.5");
    await page.click("button:has-text('Set limits')");
    found.limits = await page.textContent("table.stack tbody");
    await page.context().close();
  },

  async playground() {
    const page = await signedIn();
    watch(page);
    await page.goto(`${base}/console/playground?account_id=${account.split("/").pop()}`);
    await page.click("text=Make an API token for an hour");
    await page.waitForSelector("#question");
    await page.evaluate(() => {
      window.lengths = [];
      new MutationObserver(() => window.lengths.push(document.getElementById("answer").textContent.length))
        .observe(document.getElementById("answer"), { childList: true, characterData: true, subtree: true });
    });
    await page.click("#ask");
    await page.waitForSelector("#answer[data-state=done]");
    found.answer = await page.textContent("#answer");
    found.figures = await page.textContent("#figures");
    found.pieces = new Set(await page.evaluate(() => window.lengths)).size;
    await page.context().close();
  },

  async withoutScript() {
    const page = await newPage(undefined, { javaScriptEnabled: false });
    await page.goto(`${base}/console/accounts/new`);
    await page.fill("#credential", credential);
    await page.click("button:has-text('Sign in')");
    await page.fill("#name", "made without script");
    await page.click("button:has-text('Create account')");
    found.withoutScript = await page.textContent("h1");
    await page.context().close();
  },

  async hostile() {
    const page = await signedIn();
    const name = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>";
    await page.goto(`${base}/console/accounts/new`);
    await page.fill("#name", name);
    await page.click("button:has-text('Create account')");
    found.shown = await page.textContent("h1");
    found.hacked = await page.evaluate(() => window.hacked ?? 0);
    // Even what escapes the templates is stopped by the policy.
    await page.evaluate((text) => document.body.insertAdjacentHTML("beforeend", text), name);
    await page.waitForTimeout(200);
    found.hackedPastTemplates = await page.evaluate(() => window.hacked ?? 0);
    const control = await newPage();
    await control.goto("about:blank");
    await control.evaluate((text) => document.body.insertAdjacentHTML("beforeend", text), name);
    await control.waitForFunction(() => window.hacked === 1);
    found.hackedElsewhere = 1;
    await control.context().close();
    await page.context().close();
  },

  async otherSite() {
    const page = await signedIn();
    const requests = [];
    const server = createServer((request, response) => {
      requests.push(request.url);
      response.setHeader("content-type", "text/html");
      response.end(request.url === "/framed" ? "<h1>framed</h1>" : `
        <iframe id="own" src="/framed"></iframe><iframe id="console" src="${base}/console"></iframe>
        <form method="post" action="${base}/console/accounts/new"><input name="name" value="forged"></form>`);
    });
    await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.waitForTimeout(300);
    const frames = page.frames().slice(1);
    found.frames = await Promise.all(frames.map((frame) => frame.textContent("body").catch(() => "")));
    await page.evaluate(() => document.forms[0].submit());
    await page.waitForLoadState();
    found.forged = await page.textContent("body");
    server.close();
    await page.context().close();
  },
};

for (const [name, step] of Object.entries(steps)) {
  const begun = Date.now();
  try {
    await step();
  } catch (error) {
    found.failed = `${name}: ${error}`.slice(0, 1500);
    break;
  }
  found.times = { ...found.times, [name]: Date.now() - begun };
}
await first.waitForFunction(() => !document.querySelector("#live-figures dl").dataset.old);
found.live = true;
await browser.close();
console.log(JSON.stringify(found));
