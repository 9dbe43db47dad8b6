import { ApiError, type ErrorCode } from "../domain/errors.ts";
import type { RegistryReference } from "../domain/registry-reference.ts";
import type { FailedHost, RegistryGate } from "../network/registry-gate.ts";
import type { CommandError } from "../system/exec.ts";
import type { Credentials } from "./skopeo-home.ts";
import { commonFailure, reasonOf } from "./tool-failure.ts";

interface Cause {
  readonly pattern: RegExp;
  readonly code: ErrorCode;
  readonly message: (reference: RegistryReference, credentials: Credentials | null) => string;
}

const unreachable = (pattern: RegExp, reason: string): Cause => ({
  pattern,
  code: "unavailable",
  message: ({ host }) => `the registry ${host} cannot be reached: ${reason}`,
});

/**
 * The first entry that matches skopeo's message counts. A failed login is `forbidden`, because `unauthorized` would mean
 * that the token of the API is invalid.
 */
const CAUSES: readonly Cause[] = [
  unreachable(/no such host/i, "its name does not resolve"),
  unreachable(/connection refused/i, "connection refused"),
  unreachable(/no route to host|network is unreachable/i, "no route to it"),
  unreachable(/i\/o timeout|handshake timeout|deadline exceeded|client\.timeout/i, "it does not answer"),
  unreachable(/connection reset|unexpected eof|broken pipe|: EOF$/i, "it closed the connection"),
  {
    pattern: /server gave HTTP response to HTTPS client/i,
    code: "unavailable",
    message: ({ host }) => `the registry ${host} speaks plain HTTP: the operator may set insecure for it`,
  },
  {
    pattern: /x509: |tls: /i,
    code: "unavailable",
    message: ({ host }) =>
      `the certificate of the registry ${host} is not trusted: the operator may set ca_file for it`,
  },
  {
    pattern: /too ?many ?requests|status(?:code)?:? 429/i,
    code: "unavailable",
    message: ({ host }) => `the registry ${host} limits the rate of requests: try again later`,
  },
  {
    pattern:
      /manifest unknown|name unknown|blob unknown|repository name not known|status(?:code)?:? 404|404 \(not found\)/i,
    code: "not_found",
    message: ({ canonical }) => `there is no image ${canonical}`,
  },
  {
    pattern:
      /unauthorized|authentication required|invalid username\/password|access .*denied|denied:|status(?:code)?:? 40[13]/i,
    code: "forbidden",
    message: ({ canonical }, credentials) =>
      credentials === null
        ? `the registry requires credentials for ${canonical}`
        : `the registry does not accept the credentials for ${canonical}`,
  },
  {
    pattern: /invalid reference format/i,
    code: "validation_error",
    message: ({ canonical }) =>
      `skopeo of this machine cannot handle ${canonical}; old versions accept no IPv6 address`,
  },
  {
    pattern: /did not match|digest mismatch|manifest digest/i,
    code: "unavailable",
    message: ({ host }) => `the registry ${host} sent damaged data`,
  },
  {
    pattern:
      /unsupported|unknown media ?type|invalid .*manifest|parsing .*manifest|unmarshal|schema version|not a tar|invalid header|corrupt input/i,
    code: "validation_error",
    message: ({ canonical }) => `${canonical} is not an image that can be imported`,
  },
];

/** The error of a registry for a FAILED operation. @throws `error` itself when it is not a failure of skopeo */
export function registryFailure(
  error: unknown,
  reference: RegistryReference,
  access: {
    readonly credentials: Credentials | null;
    readonly timeoutMs: number;
    readonly failedHost: RegistryGate["failedHost"];
  },
): ApiError {
  const common = commonFailure(error, access.timeoutMs);
  if (common !== null) return common;
  const failure = error as CommandError;
  // skopeo reports failed mirrors first, and the registry that was named last.
  const failureText = fatalMessage(failure.stderrTail).replace(/\(Mirrors also failed: .*\]\): /s, "");
  const details = {
    registry: reference.host,
    reason: withoutSecrets(reasonOf(failureText || failure.message), access.credentials),
  };
  const failedHost = access.failedHost(failureText);
  if (failedHost !== null) {
    const elsewhere = { ...details, host: failedHost.host };
    return new ApiError(failedHost.code, failedHostMessage(reference, failedHost), elsewhere, { cause: error });
  }
  const cause = CAUSES.find(({ pattern }) => pattern.test(failureText));
  const code = cause?.code ?? "unavailable";
  const message = cause?.message(reference, access.credentials) ?? `skopeo could not copy ${reference.canonical}`;
  return new ApiError(code, message, details, { cause: error });
}

function failedHostMessage({ host }: RegistryReference, { host: failed, code, reason }: FailedHost): string {
  const own = failed === host || failed.replace(/:\d+$/, "") === host;
  if (own) return code === "forbidden" ? reason : `the registry ${host} cannot be reached: ${reason}`;
  const sentence = code === "forbidden" ? reason : `${failed} cannot be reached: ${reason}`;
  return `the registry ${host} sends its clients elsewhere, and ${sentence}`;
}

/** The text of the last line `level=fatal msg="..."`; the whole text when there is none. */
function fatalMessage(stderr: string): string {
  const quoted = /.*level=fatal msg=("(?:[^"\\]|\\.)*")/s.exec(stderr)?.[1];
  if (quoted === undefined) return stderr;
  try {
    return String(JSON.parse(quoted));
  } catch {
    // SyntaxError: Go escapes some characters differently.
    return quoted;
  }
}

/** Replaces the password. A short password would match everywhere, so it suppresses the whole text. */
function withoutSecrets(text: string, credentials: Credentials | null): string {
  if (credentials === null || credentials.password === "") return text;
  const { username, password } = credentials;
  const secrets = [password, encodeURIComponent(password), Buffer.from(`${username}:${password}`).toString("base64")];
  if (!secrets.some((secret) => text.includes(secret))) return text;
  if (password.length < 4) return "not shown: it may contain the password";
  return secrets.reduce((result, secret) => result.replaceAll(secret, "***"), text);
}
