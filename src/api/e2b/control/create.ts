import { Elysia } from "elysia";
import type { SandboxId } from "../../../domain/ids.ts";
import { type OpenInput, OtherRequestError } from "../../../service/e2b/open.ts";
import type { RecordedNetwork } from "../../../service/e2b/records.ts";
import type { Principal } from "../../../service/parts.ts";
import { authorize } from "../../auth.ts";
import { json, respond } from "../../reply.ts";
import { checked } from "../../route.ts";
import { E2bError } from "../errors.ts";
import { wireId } from "../ids.ts";
import { networkOf } from "../network.ts";
import type { E2bParts } from "../options.ts";
import { type Network, NewSandbox } from "./schema.ts";
import { sandboxOf } from "./wire.ts";

/** Lives of sandboxes whose requests name none, in `seconds`, by the age of the route. */
const OLD_TIMEOUT_SECONDS = 15;
const TIMEOUT_SECONDS = 300;
/** Bound of the keys and values of metadata together, in `bytes`. */
const METADATA_BYTES_MAX = 8192;
const keyExpression = /^[a-z0-9-]{1,255}$/i;

export function createRoutes(parts: E2bParts) {
  const create = (timeoutSeconds: number) => (context: CreateContext) => open(parts, context, timeoutSeconds);
  const takes = { takes: { scope: "instances:spawn", waitsForGuest: true }, body: checked(NewSandbox) } as const;
  return new Elysia()
    .use(parts.access)
    .post("/sandboxes", create(OLD_TIMEOUT_SECONDS), takes)
    .post("/v2/sandboxes", create(TIMEOUT_SECONDS), takes);
}

interface CreateContext {
  readonly request: Request;
  readonly principal: Principal;
  readonly body: NewSandbox;
}

async function open(parts: E2bParts, { request, principal, body }: CreateContext, timeoutDefault: number) {
  // The answer has a token with which programs run in the sandbox.
  authorize(principal, "instances:exec");
  const { service } = parts;
  const timeoutSeconds = body.timeout ?? timeoutDefault;
  const input = { ...openInput(parts, principal, body), timeoutSeconds };
  const creation = creationOf(request, { ...body, timeout: timeoutSeconds });
  try {
    const opened = await service.e2b.open(principal, { ...input, creation, signal: request.signal });
    if (opened.isNew) service.templates.spawned(principal, opened.record.templateId);
    return respond(json(201, await sandboxOf(parts, opened)), request) as never;
  } catch (error) {
    if (error instanceof OtherRequestError) throw new E2bError(422, error.message);
    throw error;
  }
}

/** The key of a request that its client may repeat, and a hash of what it says; null: it has no key. @throws E2bError 400 */
function creationOf({ headers }: Request, body: NewSandbox): OpenInput["creation"] {
  const key = headers.get("idempotency-key");
  if (key === null) return null;
  if (!keyExpression.test(key)) throw invalid("Idempotency-Key must be 1 to 255 letters, digits and hyphens");
  return { key, bodyHash: new Bun.CryptoHasher("sha256").update(JSON.stringify(body)).digest("hex") };
}

/** A checked request, without its life. @throws E2bError 400 for what is wrong or not offered */
function openInput(
  { service }: E2bParts,
  principal: Principal,
  body: NewSandbox,
): Omit<OpenInput, "timeoutSeconds" | "creation" | "signal"> {
  refuse(body);
  const { templateID: template, metadata, envVars, network } = body;
  const allowInternetAccess = body.allow_internet_access ?? null;
  const autoPause = body.autoPause ?? false;
  const wire = { ...network, allow_internet_access: allowInternetAccess };
  checkMetadata(metadata ?? {});
  return {
    ...{ template, allowInternetAccess, metadata: metadata ?? {}, autoPauseMemory: body.autoPauseMemory ?? true },
    onTimeout: autoPause ? "pause" : "end",
    autoResume: body.autoResume?.enabled ?? false,
    network: networkOf(wire, service.sandboxes.networkRules(principal)),
    recordedNetwork: network == null ? null : recordedNetwork(network),
    env: (id: SandboxId, { templateId }) => ({
      E2B_SANDBOX: "true",
      E2B_SANDBOX_ID: wireId(id),
      E2B_TEMPLATE_ID: templateId,
      ...envVars,
    }),
  };
}

function recordedNetwork(network: Network): RecordedNetwork {
  return {
    allowOut: network.allowOut ?? [],
    denyOut: network.denyOut ?? [],
    allowPublicTraffic: network.allowPublicTraffic ?? true,
    maskRequestHost: network.maskRequestHost ?? null,
    ...(network.httpsPorts == null ? {} : { httpsPorts: network.httpsPorts }),
  };
}

/** @throws E2bError 400: what is ignored silently would leak or lose data */
function refuse({ timeout, autoPause, autoPauseMemory, autoResume, iam, volumeMounts }: NewSandbox): void {
  if (timeout != null && timeout <= 0) throw invalid("timeout must be greater than 0");
  if (autoPauseMemory === false && autoPause !== true) throw invalid("autoPauseMemory: false needs autoPause: true");
  if (autoPauseMemory === false && autoResume?.enabled === true) {
    throw invalid("autoPauseMemory: false cannot be used with autoResume");
  }
  if (!isEmpty(iam?.tokens)) throw invalid("iam.tokens is not offered by this server");
  if (!isEmpty(volumeMounts)) throw invalid("volumeMounts is not offered by this server");
}

/** Absent, null, or an empty array or object. */
function isEmpty(value: unknown): boolean {
  return value == null || (typeof value === "object" && Object.keys(value).length === 0);
}

function checkMetadata(metadata: Readonly<Record<string, string>>): void {
  const bytes = Object.entries(metadata).reduce((sum, entry) => sum + Buffer.byteLength(entry.join("")), 0);
  if (bytes > METADATA_BYTES_MAX) throw invalid(`metadata must be at most ${METADATA_BYTES_MAX} bytes`);
}

function invalid(message: string): E2bError {
  return new E2bError(400, message);
}
