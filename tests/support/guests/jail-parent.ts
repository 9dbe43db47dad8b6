/**
 * A daemon with one jailed program, which a test kills. Arguments: directory, "tied" or "untied".
 * Prints the pid of the launcher and the path of its report, then waits.
 */
import { pause } from "../waiting.ts";
import { launchScript } from "./busybox-jail.ts";

const [directory = "", tie = ""] = process.argv.slice(2);
await using stack = new AsyncDisposableStack();
const script = 'echo "it runs" >&2; while [ ! -e /vm/stop ]; do sleep 0.05; done; echo "after its parent" >&2; exit 7';
const launched = await launchScript(stack, directory, script);
if (tie === "untied") await launched.lease.untie();
await Bun.write(Bun.stdout, `${launched.pid} ${launched.report}\n`);
await pause("it is killed", 60_000);
