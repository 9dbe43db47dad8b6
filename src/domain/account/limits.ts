const MIB = 1_048_576;
/** Memory of an upload in `bytes`: the chunk that is being written, and the next one. */
export const UPLOAD_BYTES = 2 * MIB;
/** Number of uses that each total reserves for accounts without uses, so that a few cannot use up all of it. */
const SPARE_COUNT = 20;

/** A bound of the concurrent uses of an account. */
export interface AccountLimit {
  /** name of the counted things */
  readonly unit: string;
  /** largest use of one account, though its first use may be larger; Infinity: it is only counted */
  readonly max: number;
  /** largest use of all accounts together, which share it as `Shares` does; default: no limit */
  readonly total?: number;
  /** part of `total` for accounts without uses */
  readonly spare?: number;
  /** part of `total` for the appliance's own work */
  readonly reserved?: number;
  /** longest wait for a use, in `milliseconds` */
  readonly waitMsMax?: number;
  /** largest sum of the sizes of an account's waiting uses; default: no limit */
  readonly waitingMax?: number;
  /** time after which a refused caller may try again, in `seconds`; default: that of all such refusals */
  readonly retryAfterSeconds?: number;
  /** message for a refused caller */
  readonly refusal: (figures: { readonly max: number; readonly used: number }) => string;
}

/** Bodies of requests that are received at a time, in `bytes`: those of one kind wait for each other. */
function bodies({ max, total, spare }: Required<Pick<AccountLimit, "max" | "total" | "spare">>) {
  const refusal = () => "too many bodies are being received";
  return { unit: "bytes", max, total, spare, waitMsMax: 60_000, waitingMax: 64 * MIB, refusal };
}

/** Long answers in progress: each holds some memory for as long as the client reads. */
function answers(max: number) {
  const refusal = () => `${max} such requests of this account are under way`;
  return { unit: "requests", max, waitMsMax: 30_000, refusal };
}

/** A limit of something that is counted here and bounded elsewhere, or bounded here and counted where it is stored. */
function untaken(unit: string, max = Infinity) {
  return { unit, max, refusal: () => `this account has ${max} ${unit} already` };
}

/** All limits of an account, with their defaults. */
export const ACCOUNT_LIMITS = {
  /** JSON bodies of up to a MiB */
  bodies: bodies({ max: 8 * MIB, total: 32 * MIB, spare: SPARE_COUNT * MIB }),
  /** larger ones; the limit fits the largest body of any route. A request takes about four times the memory of its body. */
  largeBodies: bodies({ max: 32 * MIB, total: 64 * MIB, spare: 32 * MIB }),
  /** 32 uploads, which may last for hours */
  uploads: bodies({ max: 64 * MIB, total: 256 * MIB, spare: SPARE_COUNT * UPLOAD_BYTES }),
  /** 32 bodies that last as long as a process reads them */
  inputs: bodies({ max: 64 * MIB, total: 256 * MIB, spare: SPARE_COUNT * UPLOAD_BYTES }),
  /** messages of the Model Context Protocol whose answers are not complete; each holds up to half a megabyte */
  calls: {
    unit: "requests",
    max: 256,
    total: 1024,
    spare: SPARE_COUNT,
    refusal: () => "too many requests are waiting for their answers",
  },
  /** walks through the tree of an image: through 128 layers, one holds 2 MiB */
  walks: answers(32),
  /** other long answers, with a few times 64 KiB each */
  replies: answers(32),
  /** requests for files of running instances; one guest has room for as many, besides watches */
  guestFiles: answers(24),
  /** searches of event logs, with a buffer of 256 KiB each */
  logSearches: answers(8),
  /** starts of processes that wait for their guests. A guest may never accept them, so further ones are refused at once. */
  processStarts: {
    unit: "requests",
    max: 256,
    refusal: ({ max }) => `${max} such requests of this account are under way`,
  },
  /** searches in the files of images that wait for a thread */
  waitingSearches: {
    unit: "searches",
    max: 32,
    refusal: ({ max }) => `${max} searches of this account are waiting already`,
  },
  /** long queries that wait for their turn */
  waitingQueries: {
    unit: "queries",
    max: 64,
    total: 1024,
    spare: SPARE_COUNT,
    reserved: 16,
    retryAfterSeconds: 1,
    refusal: () => "too many long listings are waiting already",
  },
  /** clients that follow the changes of the account */
  changeStreams: { unit: "streams", max: 16, refusal: () => "too many clients follow changes already" },
  /** clients that read event logs */
  eventReaders: { unit: "streams", max: 1000, refusal: () => "too many clients follow events already" },
  /** streams of calls to agents of sandboxes: one that waits for its first message, or for its client, costs little */
  callStreams: {
    unit: "streams",
    max: 1024,
    total: 4096,
    spare: SPARE_COUNT,
    refusal: ({ max }) => `${max} streams of this account are open already`,
  },
  /** long listings of files that are sent as one message each: at most 16 MiB */
  listings: {
    unit: "bytes",
    max: 64 * MIB,
    total: 256 * MIB,
    spare: SPARE_COUNT * MIB,
    refusal: () => "too many listings are being sent",
  },
  /** events of files that wait until a client requests them */
  waitingEvents: {
    unit: "bytes",
    max: 32 * MIB,
    total: 128 * MIB,
    spare: SPARE_COUNT * MIB,
    refusal: () => "too many events wait for their requests",
  },
  /** operations that have not started */
  waitingOperations: {
    unit: "operations",
    max: 1000,
    refusal: ({ max }) => `${max} operations of this account are waiting already`,
  },
  /** their requests: 50 standard inputs of the largest size */
  waitingRequests: {
    unit: "bytes",
    max: 512 * MIB,
    refusal: ({ used }) => `the waiting operations of this account have ${used} bytes of requests already`,
  },
  /** connections and look-ups of instances. Each may take half a megabyte. Imports have the reserved part. */
  connections: {
    unit: "connections",
    max: Infinity,
    total: 1024,
    spare: SPARE_COUNT,
    reserved: 64,
    refusal: () => "there are too many connections",
  },
  /** builds of templates that have not ended: the log of one takes a few megabytes */
  builds: { unit: "builds", max: 20, refusal: ({ max }) => `${max} builds of this account are under way already` },
  /** builds that are stored: each has a log */
  storedBuilds: untaken("stored builds", 2000),
  /** templates */
  templates: untaken("templates", 1000),
  /** sandboxes that have not ended */
  sandboxes: untaken("sandboxes", 256),
  /** kept memory of paused sandboxes; the total is `limits.memory_images_bytes` */
  memoryImages: {
    unit: "bytes",
    max: Infinity,
    refusal: ({ used }) => `this account keeps ${used} bytes of memory of paused sandboxes already`,
  },
  /** requests from outside to ports of sandboxes, and tunnels, in progress: each may take half a megabyte */
  visits: {
    unit: "requests",
    max: 256,
    total: 1024,
    spare: SPARE_COUNT,
    refusal: () => "too many requests to ports of this account are under way",
  },
  /** running operations, and their shares of the host's budget, which the scheduler bounds */
  running: untaken("operations"),
  memory: untaken("bytes"),
  vcpus: untaken("vcpus"),
  /** valid tokens that are stored, and ended ones that are still listed */
  tokens: untaken("tokens", 1000),
  /** merged layers, as a share of the bytes of its layers: what exceeds it is removed; by `layers.merged_share` */
  mergedLayers: untaken("share", 1),
} satisfies Record<string, AccountLimit>;

export type LimitName = keyof typeof ACCOUNT_LIMITS;

/** Every limit of an account. */
export type AccountLimits = Readonly<Record<LimitName, AccountLimit>>;
