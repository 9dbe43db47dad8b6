import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { Accounts } from "../../../src/domain/account/accounts.ts";
import type { Destination } from "../../../src/domain/network.ts";
import { createLog } from "../../../src/log.ts";
import { GateClient, type GateOptions, type GateSettings } from "../../../src/network/gate/client.ts";
import type { AddressReach, GateRequest } from "../../../src/network/gate.ts";
import { scratchDirectory } from "../../../src/system/scratch.ts";
import { builtAssets } from "../guests/vm.ts";
import { nameServer } from "./site/name-server.ts";

/** A user id that no virtual machine of a test has. */
const GATE_UID = 1_900_100_000;
const DAEMON_PORTS = [8642, 8644];
/** The path of a data directory may be too long for a socket. */
const LONG_NAME = "data-directory-".repeat(10);

export interface TestGate extends AsyncDisposable {
  readonly gate: GateClient;
  /** lines of the gate's log */
  readonly warnings: string[];
  /** directory of the gate's files, which is empty without a process */
  readonly directory: string;
}

/** A request for any bytes to a destination of a guest. */
export function guestRequest(
  destination: Destination,
  {
    except = [],
    anyAddress = false,
    ...change
  }: Partial<GateRequest & Pick<AddressReach, "except" | "anyAddress">> = {},
): GateRequest {
  const reach = { forbidden: "all-not-public", except, anyAddress } as const;
  return { account: null, destination, reach, serverName: null, idleMs: 60_000, ...change };
}

/** The real connecting process, as a daemon starts it. By default no name exists. */
export async function testGate(
  settings: Partial<GateSettings> = {},
  more: Partial<Pick<GateOptions, "idleMs" | "host">> = {},
): Promise<TestGate> {
  await using stack = new AsyncDisposableStack();
  const names = stack.use(await nameServer(() => null));
  const warnings: string[] = [];
  const log = createLog({ level: "warn", format: "text", write: (line) => void warnings.push(line) });
  const cgroups = stack.use(
    await openCgroupTree({ namespace: `coppice-test-gate-${process.pid}-${Bun.randomUUIDv7()}` }),
  );
  const scratch = stack.use(await scratchDirectory("/tmp", "coppice-gate-"));
  const directory = join(scratch.path, LONG_NAME, "gate");
  const gate = stack.use(
    new GateClient({
      accounts: new Accounts(),
      launcher: async () => builtAssets().launcher,
      cgroups,
      uid: GATE_UID,
      directory,
      settings: { resolvers: [names.address], proxy: null, proxyBypass: { names: [], ranges: [] }, ...settings },
      log,
      ...more,
    }),
  );
  gate.protectPorts(DAEMON_PORTS);
  const owned = stack.move();
  return { gate, warnings, directory, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
