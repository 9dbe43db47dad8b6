/** Runs a registry with a small image until it is killed, and prints the image's reference. */
import { pushBusybox } from "./images.ts";
import { Registry } from "./registry.ts";

/** Nobody needs it for longer, in `milliseconds`. */
const LIFE_MS_MAX = 600_000;

await using registry = await Registry.start();
process.stdout.write(`${await pushBusybox(registry, "busybox:1")}\n`);
await Bun.sleep(LIFE_MS_MAX);
