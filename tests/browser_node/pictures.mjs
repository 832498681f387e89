// Takes pictures of pages: reads a JSON list of {path, name} from argv, signs in first.
import { readFileSync } from "node:fs";
import { open } from "./console.mjs";

const { base, credential, folder, pages, widths } = JSON.parse(readFileSync(0, "utf8"));
const { browser, newPage, signIn } = await open(base);
for (const width of widths) {
  const door = await newPage({ width, height: 700 });
  await door.goto(`${base}/console/sign-in`);
  await door.screenshot({ path: `${folder}/console-sign-in-${width}.png` });
  await door.context().close();
  const page = await signIn(credential, { width, height: width > 800 ? 800 : 860 });
  for (const { path, name, steps } of pages) {
    await page.goto(base + path, { waitUntil: "load" });
    for (const step of steps ?? []) {
      if (step.when && !(await page.$(step.when))) continue;
      if (step.fill) await page.fill(step.fill, step.value);
      if (step.click) await page.click(step.click);
      if (step.wait) await page.waitForSelector(step.wait);
    }
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (overflow > 0) console.log(`${name} at ${width}: ${overflow} px too wide`);
    const height = Math.min(await page.evaluate(() => document.documentElement.scrollHeight), 1500);
    await page.setViewportSize({ width, height: Math.max(height, 800) });
    await page.screenshot({ path: `${folder}/${name}-${width}.png` });
    await page.setViewportSize({ width, height: 800 });
  }
  await page.context().close();
}
await browser.close();
