import { given } from "../../../domain/given.ts";
import { isoTime } from "../../../domain/ids.ts";
import { allows } from "../../../domain/scope.ts";
import type { ListedRecorded } from "../../../service/e2b/listing.ts";
import type { Principal } from "../../../service/parts.ts";
import { wireId } from "../ids.ts";
import { type E2bParts, hasPublicPorts } from "../options.ts";

/** Release of the vendor's agent whose features this server has: clients decide by it what they use. */
export const ENVD_VERSION = "0.6.4";
/** Clients require this text, and do nothing with it. */
const CLIENT_ID = "coppice";
const MIB_BYTES = 1_048_576;
const PAUSED_STATES: readonly string[] = ["pausing", "paused"];

type WireParts = Pick<E2bParts, "service" | "settings">;

/** The fields of a sandbox that all answers have. */
function common({ sandbox, record }: ListedRecorded) {
  return {
    sandboxID: wireId(sandbox.id),
    templateID: record.templateId,
    clientID: CLIENT_ID,
    envdVersion: ENVD_VERSION,
    ...given({ alias: record.alias }),
  };
}

/** The answer to a request that made, connected to, or resumed a sandbox. */
export async function sandboxOf({ service, settings }: WireParts, recorded: ListedRecorded) {
  const { record } = recorded;
  const { credentials } = service.e2b;
  return {
    ...common(recorded),
    envdAccessToken: await credentials.token("envd", record),
    trafficAccessToken: hasPublicPorts(settings, record) ? null : await credentials.token("traffic", record),
    domain: settings.domain,
  };
}

/** A sandbox of a listing. */
export function listedOf(recorded: ListedRecorded) {
  const { sandbox, record } = recorded;
  const { vcpus, memoryBytes, diskBytes } = sandbox.resources;
  return {
    ...common(recorded),
    startedAt: isoTime(record.startedAt),
    // One without a machine has no deadline, but clients require a time.
    endAt: isoTime(sandbox.endsAt ?? sandbox.stateAt),
    cpuCount: vcpus,
    memoryMB: Math.round(memoryBytes / MIB_BYTES),
    diskSizeMB: Math.round(diskBytes / MIB_BYTES),
    metadata: sandbox.metadata,
    state: PAUSED_STATES.includes(sandbox.state) ? "paused" : "running",
  };
}

/** A single sandbox. Its token is only for callers who may run programs in it. */
export async function detailOf({ service, settings }: WireParts, principal: Principal, recorded: ListedRecorded) {
  const { record } = recorded;
  const listed = listedOf(recorded);
  const mayAct = allows(principal.grants, "instances:exec");
  return {
    ...listed,
    ...given({
      envdAccessToken: mayAct ? await service.e2b.credentials.token("envd", record) : null,
      domain: settings.domain,
      allowInternetAccess: record.allowInternetAccess,
      network: record.network === null ? null : given(record.network),
      // Requests may have asked for more.
      pauseMode: listed.state === "paused" ? pauseModeOf(service, recorded) : null,
    }),
    lifecycle: { onTimeout: record.autoPause ? "pause" : "kill", autoResume: record.autoResume },
  };
}

function pauseModeOf({ sandboxes }: WireParts["service"], { sandbox }: ListedRecorded): "full" | "filesystem" {
  return sandboxes.memoryOf(sandbox) === null ? "filesystem" : "full";
}
