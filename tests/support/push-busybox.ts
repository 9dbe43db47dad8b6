import { pushBusybox } from "./images.ts";
import { Registry } from "./registry.ts";

/**
 * `bun tests/support/push-busybox.ts [repository:tag]` serves a new registry with the busybox image on the loopback,
 * prints `<host>` and `<reference>` on two lines, and ends, registry included, when its standard input does.
 */
await using registry = await Registry.start();
const reference = await pushBusybox(registry, process.argv[2]);
process.stdout.write(`${registry.host}\n${reference}\n`);
for await (const _chunk of Bun.stdin.stream()) {
  // Only its end matters.
}
