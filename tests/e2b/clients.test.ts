import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { CLIENTS, type Client, FURTHER_CLIENTS, LONG_CLIENTS, MODE, NEWEST_CLIENTS } from "../support/e2b/clients.ts";
import { ClientScene, installed, type ProgramEnd } from "../support/e2b/published.ts";

/** A machine is emulated, and a program uses several. */
const PROGRAM_MS = 600_000;
/** LangChain's standard suite searches and edits by many programs in the guest. */
const SUITE_MS = 1_800_000;
const TASKS = join(import.meta.dir, "tasks");
const isFull = MODE === "full";
const isOffline = MODE === "offline";
/** Steps that a second release need not repeat in a short run: they take long, and do not depend on the client. */
const LONG_STEPS = isFull ? [] : ["snapshot", "fork", "offline"];
/** Tests of LangChain's standard suite in a short run. */
const SHORT_STANDARD = isFull ? undefined : "upload or download or execute or awrite";

let scene: ClientScene;

beforeAll(async () => {
  scene = await ClientScene.start();
  if (isFull) for (const name of ["python:3.12", "ubuntu:24.04"]) await scene.publish(name);
}, PROGRAM_MS);
afterAll(() => scene[Symbol.asyncDispose]());

/** Awaits the success of a program, and returns its lines. */
async function linesOf(program: Promise<ProgramEnd>): Promise<string[]> {
  const { code, stdout, stderr } = await program;
  if (code !== 0)
    throw new Error(`it ended with ${code} after: ${stdout.replaceAll("\n", " ")}\n${stderr.slice(-3000)}`);
  return stdout.trimEnd().split("\n");
}

const story = (client: Client, ...leftOut: string[]): Promise<string[]> => {
  return linesOf(scene.program(client, client.language === "python" ? "story.py" : "story.mjs", ...leftOut));
};

const control = (client: Client): Promise<string[]> => {
  return linesOf(scene.program(client, client.language === "python" ? "control.py" : "control.mjs"));
};

async function templates(client: Client): Promise<void> {
  const steps = ["build", "use", "cache", "failure", "tags", "start command"];
  expect(await linesOf(scene.program(client, "templates.py"))).toEqual(steps);
}

describe("the SDKs", () => {
  test(
    "Python does all that it offers with a sandbox",
    async () => {
      expect((await story(CLIENTS.python)).at(-1)).toBe("end");
    },
    PROGRAM_MS,
  );

  test(
    "JavaScript does all that it offers with a sandbox",
    async () => {
      expect((await story(CLIENTS.javascript)).at(-1)).toBe("end");
    },
    PROGRAM_MS,
  );

  test.skipIf(isOffline)(
    "the newest Python does the same (needs a registry)",
    async () => {
      expect((await story(NEWEST_CLIENTS.python, ...LONG_STEPS)).at(-1)).toBe("end");
    },
    PROGRAM_MS,
  );

  test.skipIf(isOffline)(
    "the newest JavaScript does the same (needs a registry)",
    async () => {
      expect((await story(NEWEST_CLIENTS.javascript, ...LONG_STEPS)).at(-1)).toBe("end");
    },
    PROGRAM_MS,
  );

  test(
    "Python has pages, private ports, limits of the network, and errors by their types",
    async () => {
      expect((await control(CLIENTS.python)).at(-1)).toBe("end");
    },
    PROGRAM_MS,
  );

  test(
    "JavaScript has them, too, and builds templates",
    async () => {
      expect((await control(CLIENTS.javascript)).at(-1)).toBe("end");
    },
    PROGRAM_MS,
  );

  for (const [name, client] of isFull ? Object.entries(FURTHER_CLIENTS) : []) {
    test(
      `${name} does the same`,
      async () => {
        expect((await story(client)).at(-1)).toBe("end");
        expect((await control(client)).at(-1)).toBe("end");
        if (client.language === "python") await templates(client);
      },
      SUITE_MS,
    );
  }

  for (const [name, client] of isFull ? Object.entries(NEWEST_CLIENTS) : []) {
    test(
      `the newest ${name} does the same as the pinned one (needs a registry)`,
      async () => {
        expect((await control(client)).at(-1)).toBe("end");
        if (client.language === "python") await templates(client);
      },
      SUITE_MS,
    );
  }

  test(
    "Python runs many streams at once, and its callbacks see what happens",
    async () => {
      const steps = ["many_streams", "watch", "terminal", "abandoned", "ended"];
      expect(await linesOf(scene.program(CLIENTS.python, "at_once.py"))).toEqual(steps);
    },
    PROGRAM_MS,
  );

  test(
    "templates are built by steps, cached, tagged and started",
    async () => {
      await templates(CLIENTS.python);
    },
    PROGRAM_MS,
  );
});

describe("what stands on them", () => {
  test(
    "LangChain's standard suite passes",
    async () => {
      const lines = await linesOf(scene.pytest(CLIENTS.langchain, "test_standard.py", SHORT_STANDARD));
      expect(lines.at(-1)).toMatch(/^\d+ passed/);
    },
    SUITE_MS,
  );

  test(
    "the client of OpenAI's Agents SDK has its workspace and terminal, and resumes",
    async () => {
      const steps = ["workspace", "terminal", "resumed"];
      expect(await linesOf(scene.program(CLIENTS.agents, "agents_client.py"))).toEqual(steps);
    },
    PROGRAM_MS,
  );

  test(
    "the code interpreter reaches the server of its template's start command",
    async () => {
      const steps = ["code", "files and commands", "resumed"];
      expect(await linesOf(scene.program(CLIENTS.interpreter, "interpreter.py"))).toEqual(steps);
    },
    PROGRAM_MS,
  );

  test(
    "ComputeSDK's provider runs commands, and finds its sandboxes again",
    async () => {
      const steps = ["commands", "files", "sandboxes", "snapshot"];
      expect(await linesOf(scene.program(CLIENTS.computesdk, "provider.mjs"))).toEqual(steps);
    },
    PROGRAM_MS,
  );

  if (isFull) {
    test(
      "Harbor solves its tasks with the oracle agent, in environments of Dockerfiles",
      async () => {
        const command = "from harbor.cli.main import app; app()";
        const options = ["-a", "oracle", "-e", "e2b", "-n", "2", "--job-name", "tasks", "--quiet", "--yes"];
        await linesOf(scene.python(LONG_CLIENTS.harbor, "-c", command, "run", "-p", TASKS, ...options));
        const { stats } = await Bun.file(join(scene.home, "jobs/tasks/result.json")).json();
        expect(stats).toMatchObject({ n_completed_trials: 2, n_errored_trials: 0 });
        expect(stats.evals.oracle__tasks.metrics).toEqual([{ mean: 1 }]);
      },
      SUITE_MS,
    );

    test(
      "mini-swe-agent runs in its own environment, by the profile of the ConTree clients",
      async () => {
        const { appliance, home } = scene;
        const profile = [
          "type = jwt",
          `url = ${appliance.url}/contree`,
          `token = ${await appliance.createToken("tester")}`,
        ];
        const text = ["[DEFAULT]", "profile = default", "[profile:default]", ...profile, ""].join("\n");
        await Bun.write(join(home, ".config/contree/auth.ini"), text);
        expect((await linesOf(scene.program(LONG_CLIENTS.miniSweAgent, "mini_swe_agent.py"))).at(-1)).toBe("end");
      },
      PROGRAM_MS,
    );
  }

  test(
    "the command line opens, uses, pauses, resumes and ends a sandbox",
    async () => {
      const program = `${installed(CLIENTS.cli)}/node_modules/.bin/e2b`;
      const e2b = (args: string, stdin = "") => scene.run([program, ...args.split(" ")], {}, stdin);
      const json = async (args: string) => JSON.parse((await linesOf(e2b(`${args} --format json`))).join("\n"));
      const listed = async (state: string) =>
        (await json(`sandbox list --state ${state}`)).map(({ sandboxId }: { sandboxId: string }) => sandboxId);
      const created = await linesOf(e2b("sandbox create base --detach"));
      const [id = ""] = /[a-z0-9]{32}/.exec(created.join("\n")) ?? [];
      expect(await listed("running")).toContain(id);
      expect(await linesOf(e2b(`sandbox exec ${id} -- wc -c`, "piped"))).toEqual(["5"]);
      expect((await e2b(`sandbox exec --user root ${id} -- sh -c 'exit 7'`)).code).not.toBe(0);
      await linesOf(e2b(`sandbox pause ${id}`));
      expect(await listed("paused")).toEqual([id]);
      await linesOf(e2b(`sandbox resume ${id}`));
      expect(await json(`sandbox info ${id}`)).toMatchObject({ sandboxId: id, state: "running" });
      await linesOf(e2b(`sandbox kill ${id}`));
      expect(await listed("running")).not.toContain(id);
      const templates = await json("template list");
      expect(templates).toContainEqual(expect.objectContaining({ templateID: "base", aliases: ["base"] }));
    },
    PROGRAM_MS,
  );
});
