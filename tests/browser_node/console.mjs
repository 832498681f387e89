// A real browser at the console's door.
import { chromium } from "playwright-core";

export async function open(base) {
  const browser = await chromium.launch({
    executablePath: process.env.HEARTH_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"],
  });

  async function newPage(viewport = { width: 1280, height: 800 }, more = {}) {
    const context = await browser.newContext({ viewport, colorScheme: "light", reducedMotion: "reduce", ...more });
    const page = await context.newPage();
    page.setDefaultTimeout(15000);
    return page;
  }

  async function signIn(credential, viewport, more) {
    const page = await newPage(viewport, more);
    await page.goto(`${base}/console`);
    await page.fill("#credential", credential);
    await page.click("text=Sign in >> nth=-1");
    await page.waitForSelector("h1:has-text('Overview')");
    return page;
  }
  return { browser, newPage, signIn };
}
