import { ApiError } from "./errors.ts";
import { given } from "./given.ts";

/** Reference to an image in a registry, by tag or by digest. */
export interface RegistryReference {
  /** lower-case host name or address (IPv6 in brackets), with `:port` when one was given */
  readonly host: string;
  readonly repository: string;
  /** absent only when there is a digest */
  readonly tag?: string;
  /** `sha256:` and 64 lower-case hexadecimal digits; takes precedence over the tag */
  readonly digest?: string;
  /** full spelling, which parses to the same reference */
  readonly canonical: string;
}

export interface RegistryReferenceOptions {
  /** host for references that name none; without it they are refused */
  readonly defaultRegistry?: string | null;
}

const TAG_DEFAULT = "latest";
const REFERENCE_BYTES_MAX = 1024;
/** The registry protocol's limit for host and repository together. */
const NAME_BYTES_MAX = 255;
const PORT_MAX = 65_535;

const PATH_COMPONENT = "[a-z0-9]+(?:(?:\\.|_|__|-+)[a-z0-9]+)*";
const repositoryExpression = new RegExp(`^${PATH_COMPONENT}(?:/${PATH_COMPONENT})*$`);
const tagExpression = /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$/;
const digestExpression = /^sha256:[0-9a-f]{64}$/;
const nameExpression = /^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*$/;

const IMPLIED_TRANSPORT = "docker://";
/** Prefixes of other sources that image tools accept. They would open files and sockets of this host. */
const transportExpression =
  /^(?:[a-z][a-z0-9+.-]*:\/\/|(?:atomic|containers-storage|dir|docker|docker-archive|docker-daemon|file|oci|oci-archive|ostree|sif|tarball):(?!\d{1,5}\/))/i;

const invalid = (message: string): ApiError => new ApiError("validation_error", message, { field: "registry" });

/**
 * Parses `[docker://]host[:port]/repository[:tag][@sha256:...]`. Messages never repeat a part that may be a password.
 * @throws ApiError `validation_error`
 */
export function parseRegistryReference(text: string, options: RegistryReferenceOptions = {}): RegistryReference {
  if (text.length > REFERENCE_BYTES_MAX) throw invalid(`registry must be at most ${REFERENCE_BYTES_MAX} characters`);
  if (!/^[\x21-\x7e]+$/.test(text)) throw invalid("registry must be printable ASCII characters without spaces");
  const full = text.startsWith(IMPLIED_TRANSPORT) ? text.slice(IMPLIED_TRANSPORT.length) : text;
  refuseTransport(full);
  refuseUserinfo(full);

  const { authority, path } = splitHost(full, options.defaultRegistry ?? null);
  const { repository, tag, digest } = parsePath(path);
  if (authority === null) {
    const suggestion = `<registry-host>/${path}`;
    const rule = "the host needs a dot or a port, or is localhost";
    throw invalid(`registry names no registry host: write ${suggestion} (${rule})`);
  }
  const host = parseHost(authority);
  if (host.length + 1 + repository.length > NAME_BYTES_MAX) {
    throw invalid(`registry: host and repository must be at most ${NAME_BYTES_MAX} characters together`);
  }
  const effectiveTag = tag ?? (digest === undefined ? TAG_DEFAULT : undefined);
  return {
    host,
    repository,
    ...given({ tag: effectiveTag, digest }),
    canonical: `${host}/${repository}${effectiveTag ? `:${effectiveTag}` : ""}${digest ? `@${digest}` : ""}`,
  };
}

function refuseTransport(text: string): void {
  const transport = transportExpression.exec(text)?.[0];
  if (transport === undefined) return;
  throw invalid(
    `registry must not begin with ${transport}: images come from container registries only, as <registry-host>/<repository>:<version>`,
  );
}

function refuseUserinfo(text: string): void {
  const slash = text.indexOf("/");
  const first = slash < 0 ? text : text.slice(0, slash);
  const at = first.lastIndexOf("@");
  // In a reference without a host, the text after "@" may be a digest.
  if (at < 0 || (slash < 0 && digestExpression.test(first.slice(at + 1)))) return;
  throw invalid("registry must not hold a user name or password: give them in credentials");
}

/** A first component without a dot or a port is part of the repository: image tools would add their own default host. */
function splitHost(text: string, defaultRegistry: string | null): { authority: string | null; path: string } {
  const slash = text.indexOf("/");
  const first = slash < 0 ? "" : text.slice(0, slash);
  if (/[.:[]/.test(first) || first.toLowerCase() === "localhost") {
    return { authority: first, path: text.slice(slash + 1) };
  }
  return { authority: defaultRegistry, path: text };
}

function parseHost(authority: string): string {
  const parts = /^(\[[^\]]*\]|[^:[\]]*)(?::(\d{1,5}))?$/.exec(authority.toLowerCase());
  const [, name = "", port] = parts ?? [];
  if (port !== undefined && !(Number(port) >= 1 && Number(port) <= PORT_MAX)) {
    throw invalid(`registry: the port must be a number from 1 to ${PORT_MAX}`);
  }
  const host = name.startsWith("[") ? canonicalIpv6(name) : nameExpression.test(name) ? name : null;
  if (host === null)
    throw invalid("registry: the host must be a host name, an IPv4 address, or an IPv6 address in brackets");
  if (!/[.:]/.test(host) && port === undefined && host !== "localhost") {
    throw invalid("registry: a host without a dot needs a port");
  }
  return port === undefined ? host : `${host}:${Number(port)}`;
}

function canonicalIpv6(bracketed: string): string | null {
  const url = URL.parse(`http://${bracketed}/`);
  return url?.hostname.startsWith("[") ? url.hostname : null;
}

function parsePath(path: string): { repository: string; tag: string | undefined; digest: string | undefined } {
  const at = path.indexOf("@");
  const named = at < 0 ? path : path.slice(0, at);
  const digest = at < 0 ? undefined : path.slice(at + 1);
  const colon = named.indexOf(":");
  const repository = colon < 0 ? named : named.slice(0, colon);
  const tag = colon < 0 ? undefined : named.slice(colon + 1);
  if (!repositoryExpression.test(repository)) {
    throw invalid("registry: the repository must be lower-case letters and digits, separated by / . _ __ or -");
  }
  if (tag !== undefined && !tagExpression.test(tag)) {
    throw invalid("registry: the version must be 1 to 128 characters of A-Z a-z 0-9 . _ - and not begin with . or -");
  }
  if (digest !== undefined && !digestExpression.test(digest)) {
    throw invalid("registry: the digest must be sha256: and 64 lower-case hexadecimal digits");
  }
  return { repository, tag, digest };
}
