/**
 * Takes the picture of the README: the branches of an image on the page.
 * Usage: COPPICE_TEST_EXECUTABLE=dist/coppice bun tests/support/page/picture.ts   (writes docs/page.png)
 */
import { resolve } from "node:path";
import { Appliance } from "../appliance/appliance.ts";
import { pushBusybox } from "../images/images.ts";
import { Registry } from "../images/registry.ts";
import { PageBrowser } from "./browser.ts";
import { signIn } from "./scene.ts";
import { settled } from "./views.ts";

const PICTURE = resolve(import.meta.dir, "../../../docs/page.png");

await using registry = await Registry.start();
// The commands need only a shell, so the mirror serves an image with one under the public name.
await pushBusybox(registry, "library/python:3.12-slim");
const mirror = `mirrors = [{ host = "${registry.host}", insecure = true }]`;
await using appliance = await Appliance.start({
  registries: [registry.host],
  tables: `[registries.hosts."docker.io"]\n${mirror}`,
});
await appliance.importImage("docker.io/library/python:3.12-slim", "python");
/** Image, command, and tag of the result. */
const runs: readonly (readonly [string, string, string?])[] = [
  ["tag:python", "mkdir -p /srv/app; echo 'print(\"hello\")' > /srv/app/main.py", "app"],
  ["tag:app", "echo 'print(\"hello, world\")' > /srv/app/main.py", "greeting"],
  ["tag:app", "echo 'raise SystemExit(3)' > /srv/app/main.py; exit 3"],
  ["tag:app", "sed -i s/hello/goodbye/ /srv/app/main.py", "farewell"],
  ["tag:greeting", "sed -i s/world/Coppice/ /srv/app/main.py", "release"],
  ["tag:greeting", "rm -r /srv/app"],
  ["tag:python", "mkdir -p /srv; seq 100000 > /srv/numbers", "numbers"],
];
for (const [image, command, tag] of runs) await appliance.run(image, command, tag === undefined ? {} : { tag });

await using browser = await PageBrowser.start();
const tab = await browser.open(`http://127.0.0.1:${new URL(appliance.url).port}`, {});
const { page } = tab;
await page.emulateMedia({ colorScheme: "light" });
await page.setViewportSize({ width: 1280, height: 640 });
await page.goto("/");
await signIn(tab, appliance.token);
await settled(tab);
await page.getByText("release").first().waitFor();
await page.screenshot({ path: PICTURE, animations: "disabled" });
