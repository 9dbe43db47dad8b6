import { IMPORT_TIMEOUT_SECONDS_DEFAULT } from "../../domain/image.ts";
import { FILE_MODE_DEFAULT, TIMEOUT_SECONDS_DEFAULT } from "../../domain/instance.ts";
import { OUTPUT_BYTES_DEFAULT } from "../../domain/output.ts";
import type { KeptInstance } from "../../domain/spawn.ts";
import type { Operation, OperationUseCases } from "../../service/operations.ts";

type KeptRequest = NonNullable<ReturnType<OperationUseCases["request"]>>;

const MASKED = "<MASKED>";
/** The image of an operation without a stored request whose image is deleted. */
const UNKNOWN_IMAGE = "00000000-0000-0000-0000-000000000000";

/** For an operation without the request of an instance, such as a checkpoint. */
const DEFAULTS: Omit<KeptInstance, "kind" | "imageId" | "inherit" | "terminal" | "isCut" | "stdinBytes"> = {
  command: "",
  args: [],
  shell: false,
  envNames: [],
  unset: [],
  preserveEnv: false,
  preserveCwd: false,
  cwd: "/",
  isCwdGiven: false,
  uid: 0,
  gid: 0,
  hostname: null,
  disposable: false,
  tag: null,
  stdinOpen: false,
  timeoutSeconds: TIMEOUT_SECONDS_DEFAULT,
  truncateOutputAtBytes: OUTPUT_BYTES_DEFAULT,
  files: [],
  resources: null,
  network: null,
};

/** The request of an instance as the service understood it, without possible secrets: variables' values and standard input. */
export function instanceFields({ imageId }: Pick<Operation, "imageId">, request: KeptRequest | null) {
  const kept = request?.kind === "instance" ? request : { ...DEFAULTS, imageId };
  const { resources } = kept;
  const set = kept.envNames.map((name) => [name, MASKED]);
  const files = kept.files.map(({ path, fileId, mode, uid, gid }) => {
    return [path, { uuid: fileId, mode: mode.toString(8).padStart(FILE_MODE_DEFAULT.length, "0"), uid, gid }];
  });
  return {
    command: kept.command,
    image: kept.imageId ?? imageId ?? UNKNOWN_IMAGE,
    args: [...kept.args],
    shell: kept.shell,
    env: Object.fromEntries([...kept.unset.map((name) => [name, ""]), ...set]) as Record<string, string>,
    preserve_env: kept.preserveEnv,
    preserve_cwd: kept.preserveCwd,
    cwd: kept.isCwdGiven ? kept.cwd : "",
    uid: kept.uid,
    gid: kept.gid,
    hostname: kept.hostname ?? "",
    stdin: { value: "", encoding: "ascii", close: !kept.stdinOpen },
    timeout: kept.timeoutSeconds,
    truncate_output_at: kept.truncateOutputAtBytes,
    disposable: kept.disposable,
    ...(kept.tag === null ? {} : { tag: kept.tag }),
    files: Object.fromEntries(files) as Record<string, { uuid: string; mode: string; uid: number; gid: number }>,
    ...(resources === null ? {} : { resources_limits: { max_layer_bytes: resources.diskBytes } }),
    networking: { enabled: kept.network !== null },
  };
}

/** The request of an import, without the password. */
export function importFields(request: KeptRequest | null) {
  if (request?.kind !== "image_import")
    return { registry: { url: "" }, tag: null, timeout: IMPORT_TIMEOUT_SECONDS_DEFAULT };
  const { source, tag, timeoutSeconds, hadCredentials } = request;
  const url = source.kind === "registry" ? `docker://${source.reference}` : `file:${source.fileId}`;
  const credentials = hadCredentials ? { credentials: { username: MASKED, password: MASKED } } : {};
  return { registry: { url, ...credentials }, tag, timeout: timeoutSeconds };
}
