import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { isoTime, parseUuidOrDigits, type SandboxId } from "../../../domain/ids.ts";
import type { SandboxSample } from "../../../domain/sandbox.ts";
import type { Principal } from "../../../service/parts.ts";
import type { Sandbox } from "../../../service/sandboxes/sandboxes.ts";
import { json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { liveSandbox } from "../control/life.ts";
import { E2bError } from "../errors.ts";
import { wireId } from "../ids.ts";
import type { E2bParts } from "../options.ts";

const IDS_COUNT_MAX = 100;
/** The end of the year 9999, after which times have no text. */
const SECONDS_MAX = 253_402_300_799;
const seconds = (name: string) =>
  Type.Optional(
    Type.Integer({ minimum: 0, maximum: SECONDS_MAX, error: `${name} must be a time in seconds since the epoch` }),
  );

const SpanQuery = Type.Object({ start: seconds("start"), end: seconds("end") });
const IdsQuery = Type.Object({
  sandbox_ids: Type.String({ error: "sandbox_ids must be a list of ids, separated by commas" }),
});

export function metricRoutes(parts: E2bParts) {
  const { access, service } = parts;
  return new Elysia()
    .use(access)
    .get(
      "/sandboxes/:sandboxID/metrics",
      ({ request, principal, params, query: { start, end } }) => {
        const { sandbox } = liveSandbox(parts, principal, params.sandboxID);
        const span = {
          ...(start === undefined ? {} : { since: isoTime(start * 1000) }),
          // A client that counts in seconds means the whole second.
          ...(end === undefined ? {} : { until: isoTime(Math.min(SECONDS_MAX, end + 1) * 1000) }),
        };
        const samples = service.sandboxes.samples(principal, sandbox.id, span);
        return respond(
          json(
            200,
            samples.map((sample) => metricOf(sandbox, sample)),
          ),
          request,
        ) as never;
      },
      { reads: "instances:read", query: checked(SpanQuery) },
    )
    .get(
      "/sandboxes/metrics",
      ({ request, principal, query: { sandbox_ids } }) => {
        const texts = [...new Set(sandbox_ids.split(",").filter((text) => text !== ""))];
        if (texts.length > IDS_COUNT_MAX) {
          throw new E2bError(400, `sandbox_ids must be at most ${IDS_COUNT_MAX} ids`);
        }
        const latest = texts.flatMap((text) => latestOf(parts, principal, text));
        return respond(json(200, { sandboxes: Object.fromEntries(latest) }), request) as never;
      },
      { reads: "instances:read", query: checked(IdsQuery) },
    );
}

/** The latest figures of a sandbox with its id; nothing of one that has none, or is not one of the account. */
function latestOf({ service }: E2bParts, principal: Principal, text: string): [string, Metric][] {
  const id = parseUuidOrDigits<SandboxId>(text);
  const sandbox = id === null ? undefined : service.e2b.find(id)?.sandbox;
  if (sandbox === undefined || sandbox.accountId !== principal.accountId) return [];
  const sample = service.sandboxes.samples(principal, sandbox.id).at(-1);
  return sample === undefined ? [] : [[wireId(sandbox.id), metricOf(sandbox, sample)]];
}

type Metric = ReturnType<typeof metricOf>;

/** Figures as the guest would see them, although the host has measured them: no more memory than there is in it. */
function metricOf({ resources }: Pick<Sandbox, "resources">, sample: SandboxSample) {
  const { at, cpuPercent, memoryBytes, cacheBytes, diskBytes } = sample;
  const memTotal = resources.memoryBytes;
  return {
    timestamp: isoTime(at),
    timestampUnix: Math.floor(at / 1000),
    cpuCount: resources.vcpus,
    // Clients print all digits.
    cpuUsedPct: Math.round(100 * cpuPercent) / 100,
    memUsed: Math.min(memTotal, memoryBytes - cacheBytes),
    memTotal,
    memCache: Math.min(memTotal, cacheBytes),
    diskUsed: Math.min(resources.diskBytes, diskBytes),
    diskTotal: resources.diskBytes,
  };
}
