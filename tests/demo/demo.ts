/**
 * Shows what the appliance does, on a temporary data directory, through the executable and plain HTTP requests: import
 * an image, run a command, read the result, branch, roll back, and the same in a sandbox. Every claim it prints is checked; a
 * wrong one fails it.
 */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import type { InstanceResult } from "../../src/client/types.ts";
import { Appliance } from "../support/appliance/appliance.ts";
import { pushBusybox } from "../support/images/images.ts";
import { Registry } from "../support/images/registry.ts";
import { Screen } from "./screen.ts";
import { outputText, Session } from "./session.ts";

const screen = new Screen();

function prove(claim: string, holds: boolean): void {
  if (!holds) throw new Error(`this does not hold: ${claim}`);
  screen.proven(claim);
}

const same = (a: readonly string[], b: readonly string[]): boolean => a.join("\n") === b.join("\n");
const MIB_BYTES = 1024 ** 2;

function show(result: InstanceResult): void {
  screen.quote(outputText(result.stdout) + outputText(result.stderr));
  const memory = (result.memory_bytes / MIB_BYTES).toFixed(1);
  const facts = [`exit code ${result.exit_code}`, `${result.cpu_time_ms} ms of CPU`, `${memory} MiB of memory`];
  screen.back(`${facts.join(", ")}, isolation: ${result.isolation}`);
}

/** The image that a run published. */
function imageOf(result: InstanceResult): string {
  if (result.image === undefined) throw new Error("the run published no image");
  return result.image;
}

/** Starts a part of the demonstration. A part that starts during Ctrl-C is stopped, too. */
async function starting<T extends AsyncDisposable>(
  what: string,
  start: Promise<T>,
  stack: AsyncDisposableStack,
  signal: AbortSignal,
): Promise<T> {
  using _waiting = screen.waiting(what);
  const part = stack.use(await start);
  signal.throwIfAborted();
  return part;
}

async function demo(signal: AbortSignal): Promise<void> {
  await using stack = new AsyncDisposableStack();
  stack.defer(() => screen.note("cleaning up"));

  screen.step("A registry on this machine, with an image made of busybox-static");
  const registry = await starting("starting the registry", Registry.start(), stack, signal);
  const reference = await pushBusybox(registry, "busybox:demo");
  screen.note(reference);

  screen.step("The appliance, on an empty data directory");
  screen.out("coppice serve --config config.toml");
  const begun = Appliance.start({ registries: [registry.host], poolSize: 2 });
  const appliance = await starting("starting", begun, stack, signal);
  screen.back(`listening at ${appliance.url}`);
  screen.out("coppice token create --account tester");
  screen.back(`${appliance.token.slice(0, 24)}… (${appliance.token.length} characters)`);
  const session = new Session(appliance, screen, signal);
  screen.back(`VMs can run here, isolation: ${await session.ready()}`);

  screen.step("Import the image");
  const base = await session.importImage(reference, "busybox");
  screen.back(`image ${base.image}, ${(base.size_bytes / MIB_BYTES).toFixed(1)} MiB, ${base.digest.slice(0, 19)}…`);

  const app = await runAndInspect(session);
  const branches = await branch(session, app);
  await rollBack(session, app, branches.blue);
  await live(appliance, signal);
  screen.step("Take it all down");
}

async function runAndInspect(session: Session): Promise<string> {
  screen.step("Run a command in a virtual machine of its own");
  const command = [
    'echo "hello from Linux $(uname -r) on $(hostname)"',
    "mkdir -p /srv/app",
    "echo 1.0 > /srv/app/version",
  ].join("; ");
  const result = await session.run("tag:busybox", command, { hostname: "demo" });
  show(result);
  prove("the command succeeded", result.exit_code === 0);
  const image = imageOf(result);
  await session.tag(image, "app");

  screen.step("Read the resulting image: no machine runs for this");
  const names = await session.names(image, "/srv/app");
  screen.back(names.join(" "));
  const version = await session.download(image, "/srv/app/version");
  screen.quote(version);
  prove("the file that the command wrote is in the image", same(names, ["version"]) && version === "1.0\n");
  return image;
}

async function branch(session: Session, app: string): Promise<{ blue: string; green: string }> {
  screen.step("Branch: two commands at the same time, on the same image");
  const change = (name: string): Promise<InstanceResult> =>
    session.run(app, `cd /srv/app && echo 2.0-${name} > version && touch ${name} && ls`);
  const [blueRun, greenRun] = await Promise.all([change("blue"), change("green")]);
  show(blueRun);
  show(greenRun);
  const [blue, green] = [imageOf(blueRun), imageOf(greenRun)];

  screen.step("Each branch has its own change, and the parent has none");
  prove("blue holds only blue's change", same(await session.names(blue, "/srv/app"), ["blue", "version"]));
  prove("green holds only green's change", same(await session.names(green, "/srv/app"), ["green", "version"]));
  prove("the parent is untouched", same(await session.names(app, "/srv/app"), ["version"]));
  prove("blue says 2.0-blue", (await session.download(blue, "/srv/app/version")) === "2.0-blue\n");
  prove("green says 2.0-green", (await session.download(green, "/srv/app/version")) === "2.0-green\n");
  prove("the parent still says 1.0", (await session.download(app, "/srv/app/version")) === "1.0\n");
  return { blue, green };
}

async function rollBack(session: Session, app: string, blue: string): Promise<void> {
  screen.step("Roll forward, then back: a tag moves, nothing is copied");
  await session.tag(blue, "app");
  const forward = await session.run("tag:app", "cat /srv/app/version", { disposable: true });
  show(forward);
  prove("tag:app is blue's branch", outputText(forward.stdout) === "2.0-blue\n");
  await session.tag(app, "app");
  const back = await session.run("tag:app", "cat /srv/app/version", { disposable: true });
  show(back);
  prove("tag:app is the parent again", outputText(back.stdout) === "1.0\n");
}

/** Shows a sandbox by the command line. */
async function live(appliance: Appliance, signal: AbortSignal): Promise<void> {
  const coppice = async (...args: string[]): Promise<string> => {
    signal.throwIfAborted();
    screen.out(`coppice ${args.map((arg) => (arg.includes(" ") ? `'${arg}'` : arg)).join(" ")}`);
    const { code, stdout, stderr } = await appliance.command(args);
    if (code !== 0) throw new Error(stderr.trim());
    if (stdout !== "") screen.quote(stdout);
    return stdout;
  };
  screen.step("A sandbox stays: work in it, save it, break it, and roll back in place");
  await coppice("up", "tag:app", "--name", "dev");
  await coppice("exec", "--shell", "dev", "--", "echo 3.0 > /srv/app/version");
  await coppice("checkpoint", "dev", "--tag", "good");
  await coppice("exec", "--shell", "dev", "--", "rm -r /srv/app");
  await coppice("rollback", "dev");
  const version = await coppice("cat", "dev:/srv/app/version");
  prove("the sandbox has the files of the checkpoint", version === "3.0\n");
}

const executable = process.env["COPPICE_TEST_EXECUTABLE"];
if (executable === undefined || !existsSync(resolve(executable))) {
  screen.failed("There is no executable to show: make demo builds it.");
  process.exit(1);
}
const interrupted = new AbortController();
for (const name of ["SIGINT", "SIGTERM"] as const) process.on(name, () => interrupted.abort(new Error(name)));
try {
  await demo(interrupted.signal);
  screen.end("That is Coppice: cut a tree, and many new shoots grow from the same stump.");
  process.exit(0);
} catch (error) {
  const stopped = interrupted.signal.aborted;
  screen.failed(
    stopped
      ? "Stopped; everything has been removed."
      : `The demonstration failed: ${error instanceof Error ? error.message : Bun.inspect(error)}`,
  );
  process.exit(stopped ? 130 : 1);
}
