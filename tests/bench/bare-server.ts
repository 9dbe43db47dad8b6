/** The comparison side of the HTTP rows, in a process of its own: prints its address and serves until it is killed. */
import { servePeer } from "../../src/cli/bench/peer.ts";

const [kind = "", path = "", operation = "{}"] = process.argv.slice(2);
const url = await servePeer(
  kind === "file" ? { kind, path } : { kind: "route", dataDir: path, operation: JSON.parse(operation) },
);
process.stdout.write(`${url}\n`);
