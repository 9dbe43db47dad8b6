/** Runs a registry with a small image until it is killed, and prints the image's reference. */

import { pause } from "../waiting.ts";
import { busyboxImage, pushImage } from "./images.ts";
import { Registry } from "./registry.ts";

/** Longest use, in `milliseconds`. */
const LIFE_MS_MAX = 600_000;

await using registry = await Registry.start();
const { layers } = await busyboxImage();
// The launcher's work in place of the unpacking tool must also be possible within the service's unit.
const noted = [{ path: "etc/noted", xattrs: { "security.note": "x" } }];
process.stdout.write(`${await pushImage(registry, "busybox:1", { layers: [...layers, noted] })}\n`);
await pause("it is killed", LIFE_MS_MAX);
