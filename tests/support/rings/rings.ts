/** The rings of tests: files, environment and time limit of each. */
export interface Ring {
  readonly what: string;
  /** test files, as patterns */
  readonly paths: readonly string[];
  readonly except?: RegExp;
  /** loaded before the tests */
  readonly preload?: string;
  /** prefix of the command line of the tests */
  readonly within?: string;
  /** commands that count as a test each, and run before the others */
  readonly commands?: readonly (readonly string[])[];
  /** tests the built executable, not the sources */
  readonly executable?: boolean;
  /** further environment; variables of the caller have precedence */
  readonly environment?: Readonly<Record<string, string>>;
  /** runs only when it is named */
  readonly takesLong?: boolean;
  /** runs when the others have ended */
  readonly alone?: boolean;
  /** the whole ring is killed after this many `milliseconds` */
  readonly limitMs: number;
}

const MINUTE_MS = 60_000;

/** Damaged frames and index streams, as the host reads them. */
const STREAM_FUZZ = [
  "tests/unit/vm/agent.test.ts",
  "tests/unit/vm/frames.test.ts",
  "tests/unit/storage/hostile-index.test.ts",
  "tests/unit/storage/index-properties.test.ts",
];

/** Rings may run at the same time: one builds the shared parts, and the other waits. */
const NATIVE_AGENT = ["flock", "vm-assets/agent", "make", "-s", "-C", "vm-assets/agent", "native"];

/** Folders of the rings `running` and `machines`. */
const OTHERS = /^tests\/system\/(files|machines|running|sandboxes)\//;

/** By name. The longest ones are first: the others run at the same time. */
export const RINGS: Readonly<Record<string, Ring>> = {
  system: {
    what: "real registry, tools, VMs and crashes",
    paths: ["tests/system/**/*.test.ts"],
    except: OTHERS,
    executable: true,
    limitMs: 45 * MINUTE_MS,
  },
  running: {
    what: "what runs in real VMs: commands, their streams and files, and sandboxes",
    paths: ["tests/system/{files,running,sandboxes}/**/*.test.ts"],
    executable: true,
    limitMs: 45 * MINUTE_MS,
  },
  machines: {
    what: "virtual machine monitors, their jails, and what ends them",
    paths: ["tests/system/machines/**/*.test.ts"],
    executable: true,
    limitMs: 45 * MINUTE_MS,
  },
  check: {
    what: "types, style, and the rules of the source",
    commands: [
      // The types are those of the modules in the lock file, which must fit package.json.
      [process.execPath, "install", "--frozen-lockfile", "--silent"],
      ["biome", "check", "--error-on-warnings", "."],
      [process.execPath, "check"],
      [process.execPath, "check", "-p", "src/web"],
    ],
    paths: ["tests/tidy.test.ts"],
    limitMs: 5 * MINUTE_MS,
  },
  unit: {
    what: "the logic of the parts: nothing starts a program, and nothing listens",
    paths: ["tests/unit/**/*.test.ts"],
    preload: "./tests/support/rings/unit-only.ts",
    limitMs: 10 * MINUTE_MS,
  },
  parts: {
    what: "the parts that start programs or talk over sockets, with real ones",
    paths: ["tests/parts/**/*.test.ts"],
    limitMs: 10 * MINUTE_MS,
  },
  agent: {
    what: "the guest agent under sanitizers",
    commands: [NATIVE_AGENT],
    paths: ["tests/agent/**/*.test.ts"],
    limitMs: 10 * MINUTE_MS,
  },
  api: {
    what: "the HTTP contract, from source",
    commands: [NATIVE_AGENT, [process.execPath, "src/tools/web.ts"]],
    paths: ["tests/api/**/*.test.ts"],
    except: /\/dist[^/]*$/,
    limitMs: 15 * MINUTE_MS,
  },
  dist: {
    what: "the HTTP contract and the program, from the executable",
    paths: ["tests/api/**/*.test.ts"],
    executable: true,
    limitMs: 15 * MINUTE_MS,
  },
  contree: {
    what: "the wire of the public ConTree clients, with real images",
    paths: ["tests/contree/**/*.test.ts"],
    executable: true,
    limitMs: 20 * MINUTE_MS,
  },
  e2b: {
    what: "the published clients of E2B, from their registries, on real machines",
    commands: [[process.execPath, "tests/support/e2b/install.ts"]],
    paths: ["tests/e2b/**/*.test.ts"],
    executable: true,
    limitMs: 60 * MINUTE_MS,
  },
  network: {
    what: "the network of guests: real programs in a real Debian, and attacks on the rules",
    commands: [[process.execPath, "tests/support/network/build-guest.ts"]],
    paths: ["tests/network/**/*.test.ts"],
    within: "tests/support/network/alone.sh",
    preload: "./tests/support/network/preload.ts",
    executable: true,
    limitMs: 30 * MINUTE_MS,
  },
  page: {
    what: "the page, in a real browser before a real appliance",
    paths: ["tests/page/**/*.test.ts"],
    executable: true,
    limitMs: 30 * MINUTE_MS,
  },
  faults: {
    what: "kills, full disks, lies, slow clients and jumps of the clock, under load",
    paths: ["tests/faults/**/*.test.ts"],
    // The long ring has the sandboxes that talk under kills: now and then, the capture of one is refused there.
    except: /\/talking\//,
    executable: true,
    limitMs: 30 * MINUTE_MS,
  },
  install: {
    what: "the service, installed in a booted system",
    paths: ["tests/install/**/*.test.ts"],
    executable: true,
    alone: true,
    limitMs: 10 * MINUTE_MS,
  },
  debian: {
    what: "the service on Debian, in an emulated machine",
    paths: ["tests/debian/**/*.test.ts"],
    executable: true,
    takesLong: true,
    limitMs: 90 * MINUTE_MS,
  },
  soak: {
    what: "random captures, thousands of them",
    paths: ["tests/system/captures/capture.test.ts"],
    environment: { COPPICE_TEST_STEPS: "2000", COPPICE_TEST_SEED: String(Date.now() % 2 ** 31) },
    executable: true,
    takesLong: true,
    limitMs: 240 * MINUTE_MS,
  },
  "soak-faults": {
    what: "an hour of faults, an hour of kills around 20 talking sandboxes, and every fuzz with another seed",
    commands: [NATIVE_AGENT],
    paths: ["tests/faults/**/*.test.ts", "tests/api/requests/fuzz.test.ts", "tests/agent/fuzz.test.ts", ...STREAM_FUZZ],
    environment: {
      COPPICE_TEST_FAULT_SECONDS: "3600",
      COPPICE_TEST_FAULT_KILLS: "200",
      COPPICE_TEST_TALKING_SECONDS: "3600",
      COPPICE_TEST_TALKING_KILLS: "230",
      COPPICE_TEST_TALKING_OUTAGES: "200",
      COPPICE_TEST_TALKING_SANDBOXES: "20",
      COPPICE_TEST_ARCHIVES: "1000",
      COPPICE_FUZZ_COUNT: "2000",
      COPPICE_TEST_SEED: String(Date.now() % 2 ** 31),
    },
    executable: true,
    takesLong: true,
    limitMs: 240 * MINUTE_MS,
  },
};
