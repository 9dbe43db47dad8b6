import {
  bytesOfSize,
  DURATION_FORM,
  durationText,
  msOfDuration,
  SIZE_FORM,
  sizeText,
} from "../domain/text/quantities.ts";
import { LOG_LEVELS } from "../log.ts";
import { readListen } from "./listener.ts";
import { readHosts, readProxy, readRules, readServers } from "./network.ts";

/** A setting. */
export interface ConfigKey<T> {
  readonly default: T;
  /** human-readable form of the value */
  readonly form: string;
  /** meaning, for the documentation and the help */
  readonly doc: string;
  /**
   * Parses a typed value of the file, or the text of a variable or flag.
   * @throws Error whose message completes "KEY …"
   */
  parse(raw: unknown): T;
}

const DURATION_MS = { s: 1000, m: 60_000, d: 86_400_000 } as const;

type Doc<T> = { readonly default: T; readonly doc: string };

function key<T>(form: string, read: (raw: unknown) => T | undefined, doc: Doc<T>): ConfigKey<T> {
  return {
    ...doc,
    form,
    parse: (raw) => {
      const value = read(raw);
      if (value === undefined) throw new Error(`must be ${form}`);
      return value;
    },
  };
}

/** Makes a setting optional. An empty variable or flag unsets the value of the file. */
function optional<T>(inner: (doc: Doc<T>) => ConfigKey<T>, doc: Doc<null> & { readonly or: T }): ConfigKey<T | null> {
  const base = inner({ default: doc.or, doc: doc.doc });
  return { default: null, doc: doc.doc, form: base.form, parse: (raw) => (raw === "" ? null : base.parse(raw)) };
}

function text(form: string, accepts: RegExp, doc: Doc<string>): ConfigKey<string> {
  return key(form, (raw) => (typeof raw === "string" && accepts.test(raw) ? raw : undefined), doc);
}

const path = (doc: Doc<string>): ConfigKey<string> => text("a path", /^[^\0]+$/, doc);

function integer(min: number, max: number, doc: Doc<number>): ConfigKey<number> {
  const read = (raw: unknown): number | undefined => {
    const value = typeof raw === "string" && /^\d+$/.test(raw) ? Number(raw) : raw;
    return Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max
      ? (value as number)
      : undefined;
  };
  return key(`an integer from ${min} to ${max}`, read, doc);
}

function fraction(min: number, max: number, doc: Doc<number>): ConfigKey<number> {
  const read = (raw: unknown): number | undefined => {
    const value = typeof raw === "string" && /^\d+(\.\d+)?$/.test(raw) ? Number(raw) : raw;
    return typeof value === "number" && value >= min && value <= max ? value : undefined;
  };
  return key(`a number from ${min} to ${max}`, read, doc);
}

function flag(doc: Doc<boolean>): ConfigKey<boolean> {
  const words = new Map<unknown, boolean>([
    [true, true],
    [false, false],
    ["true", true],
    ["false", false],
  ]);
  return key("true or false", (raw) => words.get(raw), doc);
}

function choice<const T extends readonly string[]>(values: T, doc: Doc<T[number]>): ConfigKey<T[number]> {
  return key(`one of ${values.join(", ")}`, (raw) => values.find((value) => value === raw), doc);
}

const positive = (value: number | null): number | undefined => (value === null || value === 0 ? undefined : value);

function size({ min = 1, ...doc }: Doc<number> & { readonly min?: number }): ConfigKey<number> {
  const form = min === 1 ? SIZE_FORM : `${SIZE_FORM}, at least ${sizeText(min)}`;
  const read = (raw: unknown): number | undefined => {
    const bytes = positive(bytesOfSize(String(raw)));
    return bytes === undefined || bytes < min ? undefined : bytes;
  };
  return key(form, read, doc);
}

/** In `milliseconds`. */
function duration({ max = Infinity, ...doc }: Doc<number> & { readonly max?: number }): ConfigKey<number> {
  const form = max === Infinity ? DURATION_FORM : `${DURATION_FORM}, at most ${durationText(max / 1000)}`;
  const read = (raw: unknown): number | undefined => {
    const ms = positive(msOfDuration(String(raw)));
    return ms === undefined || ms > max ? undefined : ms;
  };
  return key(form, read, doc);
}

/** A list: an array in the file, and a text with blanks between the entries elsewhere. */
function list(
  form: string,
  read: (texts: readonly string[]) => readonly string[],
  { doc }: { readonly doc: string },
): ConfigKey<readonly string[]> {
  const readAll = (raw: unknown): readonly string[] | undefined => {
    const texts = typeof raw === "string" ? raw.split(/\s+/).filter((text) => text !== "") : raw;
    return Array.isArray(texts) && texts.every((text) => typeof text === "string") ? read(texts) : undefined;
  };
  return key(`a list of ${form}`, readAll, { default: [], doc });
}

const listenPlace = (doc: { readonly doc: string }): ConfigKey<string | null> =>
  optional((value) => key("an address and a port such as 127.0.0.1:8644", readListen, value), {
    default: null,
    or: "",
    ...doc,
  });

const DOMAIN = "[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*";

const hosts = (doc: { readonly doc: string }): ConfigKey<readonly string[]> =>
  list("names, addresses and ranges such as 10.0.0.0/8", readHosts, doc);

/** All settings, by their names in the file. A test compares the table in docs/configuration.md with them. */
export const KEYS = {
  data_dir: path({
    default: "/var/lib/coppice",
    doc: "data directory: database, keys, layers, files, events of operations",
  }),
  public_url: optional((doc) => text("an http or https address", /^https?:\/\/[^/\s]+(\/\S*[^/\s])?$/, doc), {
    default: null,
    or: "",
    doc: "address by which clients reach the service behind a reverse proxy, without a trailing slash: base of `Location` headers, origin of the page",
  }),
  "listen.host": text("an address", /^[A-Za-z0-9.:[\]-]+$/, {
    default: "127.0.0.1",
    doc: "address to listen on; any but loopback needs TLS or `listen.insecure`",
  }),
  "listen.port": integer(0, 65_535, { default: 8642, doc: "port to listen on; 0 picks a free one" }),
  "listen.tls_cert": optional(path, { default: null, or: "", doc: "PEM file of the certificate chain" }),
  "listen.tls_key": optional(path, { default: null, or: "", doc: "PEM file of the certificate's key" }),
  "listen.insecure": flag({ default: false, doc: "allow plain HTTP on addresses that other machines reach" }),
  "ingress.listen": listenPlace({
    doc: "address and port for HTTP from outside to ports of sandboxes; any but loopback needs TLS or `listen.insecure`; unset: none",
  }),
  "ingress.domain": text("a name in lower case", new RegExp(`^${DOMAIN}$`), {
    default: "localhost",
    doc: "domain of the names of ports: `PORT-UUID.DOMAIN` and `PORT-NAME.ACCOUNT.DOMAIN`; use one of which nothing else is a part",
  }),
  "ingress.tls_cert": optional(path, {
    default: null,
    or: "",
    doc: "PEM file of the certificate chain for `*.DOMAIN`",
  }),
  "ingress.tls_key": optional(path, { default: null, or: "", doc: "PEM file of the certificate's key" }),
  "ingress.behind_proxy": flag({
    default: false,
    doc: "a reverse proxy with TLS on port 443 is in front: links begin with https, and its `X-Forwarded-For` and `X-Forwarded-Proto` are believed",
  }),
  "ingress.public": choice(["never", "allow"], {
    default: "never",
    doc: "`allow` lets owners make ports public, so that clients need no token",
  }),
  "e2b.listen": listenPlace({
    doc: "address and port for clients of E2B; any but loopback needs TLS or `listen.insecure`; unset: none",
  }),
  "e2b.domain": optional(
    (doc) => text("a name in lower case, and a port if need be", new RegExp(`^${DOMAIN}(:[1-9][0-9]{0,4})?$`), doc),
    {
      default: null,
      or: "",
      doc: "domain of the names of ports, `PORT-ID.DOMAIN`, that answers give to clients, with a port unless it is 443; unset: clients use their own setting",
    },
  ),
  "e2b.tls_cert": optional(path, {
    default: null,
    or: "",
    doc: "PEM file of the certificate chain for `DOMAIN` and `*.DOMAIN`",
  }),
  "e2b.tls_key": optional(path, { default: null, or: "", doc: "PEM file of the certificate's key" }),
  "e2b.behind_proxy": flag({
    default: false,
    doc: "a reverse proxy is in front, whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed",
  }),
  "e2b.default_user": text("the name of a user", /^[a-z_][a-z0-9_-]{0,31}$/, {
    default: "user",
    doc: "user of commands and files of E2B's clients that name none; root where a sandbox has no such user",
  }),
  "e2b.public_ports": flag({
    default: true,
    doc: "ports need no token on this listener unless their sandbox asks for one; `false`: all need it",
  }),
  "web.enabled": flag({ default: true, doc: "serve the page for people at `/`" }),
  "vm.emulation": choice(["never", "allow"], {
    default: "never",
    doc: "`allow` runs VMs without KVM, by emulation, which is slow and not a security boundary",
  }),
  "vm.probe_timeout": duration({
    default: 15 * DURATION_MS.s,
    doc: "time limit for trying each VM monitor at the start; raise it on a slow host",
  }),
  "vm.probe_give_up": duration({
    default: 2 * DURATION_MS.m,
    doc: "how long instances wait while no VM monitor works; meanwhile all are tried again, with growing pauses",
  }),
  "vm.uid_base": integer(1000, 4_294_900_000, {
    default: 1_900_000_000,
    doc: "first user id of VMs; each VM gets its own, and nothing else may use these ids",
  }),
  "vm.uid_count": integer(1, 65_536, {
    default: 4096,
    doc: "number of user ids for VMs; the next one is for the process that connects to the outside",
  }),
  "vm.vcpus_default": integer(1, 64, { default: 1, doc: "vCPUs of an instance that requests none" }),
  "vm.vcpus_max": integer(1, 64, { default: 8, doc: "largest number of vCPUs of an instance" }),
  "vm.memory_bytes_default": size({ default: 512 * 1024 ** 2, doc: "memory of an instance that requests none" }),
  "vm.memory_bytes_max": size({ default: 8 * 1024 ** 3, doc: "largest memory of an instance" }),
  "vm.disk_bytes_default": size({
    default: 10 * 1024 ** 3,
    doc: "disk of an instance that requests none: the bytes that it may write",
  }),
  "vm.disk_bytes_max": size({ default: 100 * 1024 ** 3, doc: "largest disk of an instance" }),
  "vm.memory_budget_bytes": optional(size, {
    default: null,
    or: 0,
    doc: "memory of all VMs and imports together; unset: three quarters of the host's",
  }),
  "vm.cpu_budget": optional((doc) => integer(1, 4096, doc), {
    default: null,
    or: 1,
    doc: "vCPUs of all VMs together, those of a sandbox that runs counted as an eighth; unset: twice the host's CPUs",
  }),
  "pool.size": integer(0, 64, { default: 2, doc: "number of booted VMs that are kept ready" }),
  "limits.instance_timeout_max": duration({
    default: 3600 * DURATION_MS.s,
    max: 7 * DURATION_MS.d,
    doc: "largest `timeout` of an instance",
  }),
  "limits.sandbox_timeout_max": duration({
    default: DURATION_MS.d,
    max: 30 * DURATION_MS.d,
    doc: "largest `timeout` of a sandbox, which begins again with each resume",
  }),
  "limits.sandbox_log_bytes": size({
    default: 64 * 1024 ** 2,
    min: 1024 ** 2,
    doc: "largest size of the events of a sandbox; the oldest are dropped",
  }),
  "limits.memory_images_bytes": size({
    default: 16 * 1024 ** 3,
    doc: "space for the memory of sandboxes that are paused with it; beyond it such pauses are refused (507), and the sandboxes continue",
  }),
  "limits.file_bytes_max": size({ default: 5 * 1024 ** 3, doc: "largest uploaded file" }),
  "limits.disk_reserve_bytes": size({
    default: 1024 ** 3,
    doc: "space to keep free on the disk of `data_dir`; below it, imports, instances and uploads are refused (507), and the one that writes most is ended",
  }),
  "limits.image_bytes_max": size({
    default: 32 * 1024 ** 3,
    doc: "largest unpacked size of an imported image, as allocated on the disk",
  }),
  "limits.image_entries_max": integer(1, 1_999_999, {
    default: 1_000_000,
    doc: "largest number of files, directories and links of an imported image",
  }),
  "checkpoint.pause_max": duration({
    default: 5 * DURATION_MS.s,
    doc: "longest time for which a checkpoint may stop the writes of an instance while its disk is copied; QEMU needs milliseconds",
  }),
  "registries.default": optional((doc) => text("a host, with its port if it has one", /^[A-Za-z0-9.:[\]-]+$/, doc), {
    default: null,
    or: "",
    doc: "registry for references that name none; unset: such references are refused",
  }),
  "network.allow": list("rules such as *.example.org:80,443", readRules, {
    doc: "what sandboxes may connect to at most: names, `*.NAME`, `*`, addresses, ranges; ports are 80 and 443 by default; none: no networks",
  }),
  "network.private": hosts({
    doc: "names that may have addresses of the site, and ranges of such addresses, which no rule permits by itself",
  }),
  "network.record": flag({
    default: false,
    doc: "allow runs that may connect to all of `network.allow` and tell which rules would have been enough",
  }),
  "network.connections_max": integer(1, 256, { default: 256, doc: "connections of an instance at the same time" }),
  "network.opens_per_second": integer(1, 10_000, {
    default: 50,
    doc: "connections and questions for names of an instance in a second; four times as many at once",
  }),
  "network.bytes_max": optional(size, {
    default: null,
    or: 1,
    doc: "bytes that an instance may send and receive in all; unset: no limit",
  }),
  "network.idle": duration({
    default: 10 * DURATION_MS.m,
    doc: "connections of instances that carry nothing for this long are ended",
  }),
  "network.resolvers": list("addresses of name servers, with the port unless it is 53", readServers, {
    doc: "name servers for sandboxes and imports; none: those of the host",
  }),
  "network.proxy": optional((doc) => key("http://HOST:PORT or socks5://HOST:PORT", readProxy, doc), {
    default: null,
    or: "",
    doc: "proxy of the site, through which sandboxes and imports connect",
  }),
  "network.proxy_credentials_file": optional(path, {
    default: null,
    or: "",
    doc: "file with `USER:PASSWORD` for the proxy, which only its owner may read (mode 0600)",
  }),
  "network.proxy_bypass": hosts({ doc: "names and addresses that are connected to without the proxy" }),
  "operations.retention": duration({ default: 90 * DURATION_MS.d, doc: "how long ended operations are kept" }),
  "layers.merged_share": fraction(0, 10, {
    default: 1,
    doc: "space for merged layers, which make long chains quick to start, as a share of the account's layers; 0: layers are merged only when a run needs it",
  }),
  "sandboxes.keep_states": integer(1, 1000, {
    default: 20,
    doc: "saved states without a tag that a sandbox keeps; older ones are forgotten, with their images if nothing else uses them",
  }),
  "images.untagged_ttl": optional(duration, {
    default: null,
    or: 0,
    doc: "untagged images are deleted this long after their creation or their last use by a run, whichever is later; unset: never",
  }),
  "images.memory_ttl": duration({
    default: DURATION_MS.d,
    doc: "the memory of a paused sandbox is deleted this long after the pause; its files stay",
  }),
  "files.ttl": optional(duration, {
    default: null,
    or: 0,
    doc: "uploaded files that were not used for this long are removed; unset: never",
  }),
  "log.level": choice(LOG_LEVELS, { default: "info", doc: "lowest level that is logged" }),
  "log.format": choice(["auto", "json", "text"], {
    default: "auto",
    doc: "`auto` is text on a terminal and JSON lines elsewhere",
  }),
} as const;

/** Settings that a `[registries.hosts."HOST"]` table and its mirrors have in common. */
export const REGISTRY_ACCESS_KEYS = {
  insecure: flag({ default: false, doc: "speak plain HTTP, or accept any certificate" }),
  ca_file: optional(path, {
    default: null,
    or: "",
    doc: "PEM file of the authority that signed the host's certificate",
  }),
} as const;

export const REGISTRY_ALLOW_KEY = flag({ default: true, doc: "`false` refuses the host" });

export type KeyName = keyof typeof KEYS;
export type KeyValues = { [Name in KeyName]: (typeof KEYS)[Name] extends ConfigKey<infer T> ? T : never };

/** The default of a setting, as docs/configuration.md and the help show it. */
export function shownDefault(name: KeyName): string {
  const { default: value, form } = KEYS[name] as ConfigKey<unknown>;
  if (value === null) return "unset";
  if (Array.isArray(value)) return value.join(" ") || "none";
  if (form.startsWith(SIZE_FORM)) return sizeText(value as number);
  if (form.startsWith(DURATION_FORM)) return durationText((value as number) / 1000);
  return String(value);
}
