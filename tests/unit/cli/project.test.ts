import { describe, expect, test } from "bun:test";
import { readDevcontainer } from "../../../src/cli/sandbox/project/devcontainer.ts";
import { readManifest } from "../../../src/cli/sandbox/project/manifest.ts";
import { sandboxNameOf } from "../../../src/cli/sandbox/project/project.ts";

const environment = { HOME: "/home/me", TOKEN: "secret" };
const devcontainer = (text: string, directory = "/src/My.App") =>
  readDevcontainer({ file: "devcontainer.json", text, directory, environment });
const manifest = (text: string) => readManifest({ file: "coppice.toml", text, directory: "/src/app", environment });

describe("a devcontainer.json", () => {
  test("gives image, variables, user, ports, resources and commands, in JSON with comments", () => {
    const { notes, ...project } = devcontainer(`{
      // a comment, and a trailing comma
      "name": "The team's environment",
      "image": "mcr.example/devcontainers/python:3.12",
      "containerEnv": { "CACHE": "\${localEnv:HOME}/cache", "A": "1" },
      "remoteEnv": { "PROJECT": "\${containerWorkspaceFolder}/src", "B": "\${containerEnv:A}2", "GONE": null },
      "forwardPorts": [3000, "localhost:5432", 3000],
      "postCreateCommand": "pip install -r requirements.txt && echo \${USER} \${localWorkspaceFolderBasename}",
      "remoteUser": "vscode",
      "hostRequirements": { "cpus": 2, "memory": "4gb" },
      "customizations": { "vscode": { "extensions": ["x"] } }, /* no effect, and no note */
    }`);
    expect(notes).toEqual([]);
    expect(project).toEqual({
      file: "devcontainer.json",
      directory: "/src/My.App",
      image: "mcr.example/devcontainers/python:3.12",
      name: "my-app",
      request: {
        cwd: "/workspaces/My.App",
        env: { CACHE: "/home/me/cache", A: "1", PROJECT: "/workspaces/My.App/src", B: "12" },
        user: "vscode",
        resources: { vcpus: 2, memory_bytes: 4 * 1024 ** 3 },
      },
      target: "/workspaces/My.App",
      ports: [3000, 5432],
      created: [
        {
          name: "postCreateCommand",
          // The shell's own variables stay.
          commands: [`pip install -r requirements.txt && echo \${USER} My.App`],
        },
      ],
      started: [],
      served: [],
    });
  });

  test("has commands in three forms, in the order of the life of a container", () => {
    const { created, started, served } = devcontainer(`{
      "image": "x", "workspaceFolder": "/code",
      "postCreateCommand": { "server": "npm install", "db": ["mysql", "-e", "\${containerWorkspaceFolder}/a b.sql"] },
      "onCreateCommand": ["echo", "created"], "updateContentCommand": "echo updated", "postStartCommand": "echo started",
      "postAttachCommand": { "server": "streamlit run app.py" }
    }`);
    expect(created).toEqual([
      { name: "onCreateCommand", commands: [["echo", "created"]] },
      { name: "updateContentCommand", commands: ["echo updated"] },
      { name: "postCreateCommand", commands: ["npm install", ["mysql", "-e", "/code/a b.sql"]] },
    ]);
    expect(started).toEqual([{ name: "postStartCommand", commands: ["echo started"] }]);
    expect(served).toEqual([{ name: "postAttachCommand", commands: ["streamlit run app.py"] }]);
  });

  test("replaces variables with their defaults, and leaves unknown ones to the shell", () => {
    const { request } = devcontainer(`{ "image": "x", "workspaceFolder": "/w/\${localWorkspaceFolderBasename}",
      "containerEnv": { "A": "\${localEnv:NONE}", "B": "\${localEnv:NONE:fallback}", "C": "\${env:TOKEN}", "D": "\${what}",
        "E": "\${localWorkspaceFolder}", "F": "\${containerWorkspaceFolderBasename}" } }`);
    expect(request).toEqual({
      cwd: "/w/My.App",
      env: { A: "", B: "fallback", C: "secret", D: `\${what}`, E: "/src/My.App", F: "My.App" },
    });
  });

  test.each([
    ['"build": { "dockerfile": "Dockerfile" }', "build builds its image from a Dockerfile"],
    ['"dockerFile": "Dockerfile"', "dockerFile builds its image from a Dockerfile"],
    [
      '"dockerComposeFile": "../compose.yml", "service": "app"',
      "dockerComposeFile needs the containers of a Compose file",
    ],
    ['"image": 3', "image must be a text"],
    ['"image": "x", "containerEnv": { "A": 1 }', "containerEnv.A must be a text"],
    ['"image": "x", "postCreateCommand": { "a": 1 }', "postCreateCommand.a must be a line, an array of words"],
    ['"image": "x", "forwardPorts": [0]', "forwardPorts has 0, and must have port numbers"],
  ])("with %s is refused, and the reason is said", (fields, reason) => {
    expect(() => devcontainer(`{ ${fields} }`)).toThrow(`devcontainer.json: ${reason}`);
  });

  test("in another format is refused", () => {
    expect(() => devcontainer("{")).toThrow("devcontainer.json is not JSON with comments");
    expect(() => devcontainer("[]")).toThrow("devcontainer.json must have an object");
  });

  test("says which of its settings have no effect", () => {
    const { notes, ports, request } = devcontainer(`{
      "image": "x", "features": { "ghcr.io/devcontainers/features/node:1": {} }, "privileged": false, "mounts": [],
      "runArgs": ["--cap-add=SYS_PTRACE"], "forwardPorts": ["db:5432"], "remoteEnv": { "PATH": "\${containerEnv:PATH}:/x" }
    }`);
    expect(notes).toEqual([
      "features are not installed: import an image that has them",
      "arguments of docker run have no effect",
      "remoteEnv PATH needs a variable of the image, and is left out",
      "port db:5432 is on another host, and left out",
    ]);
    expect([ports, request]).toEqual([[], { cwd: "/workspaces/My.App" }]);
  });
});

describe("a coppice.toml", () => {
  test("has the settings of a sandbox", () => {
    expect(
      manifest(`
        name = "Dev Box"
        image = "tag:python"
        cwd = "/work"
        user = "app"
        timeout = "8h"
        idle = "30m"
        on_timeout = "end"
        network = ["pypi.example:443", "10.0.7.5:5432"]
        cpus = 2
        memory = "1G"
        copy_to = "/work"
        ports = [3000]
        public_ports = [8080]
        serve = "python3 -m http.server"
        on_create = ["pip", "install", "-r", "requirements.txt"]
        [env]
        DEBUG = "1"
        [on_start]
        cache = "rm -rf /tmp/cache"
      `),
    ).toEqual({
      file: "coppice.toml",
      directory: "/src/app",
      image: "tag:python",
      name: "dev-box",
      request: {
        env: { DEBUG: "1" },
        cwd: "/work",
        user: "app",
        timeout: 28_800,
        idle_timeout: 1800,
        on_timeout: "end",
        network: {
          allow: [
            { host: "pypi.example", ports: [443] },
            { host: "10.0.7.5", ports: [5432] },
          ],
        },
        resources: { vcpus: 2, memory_bytes: 1024 ** 3 },
        public_ports: [8080],
      },
      target: "/work",
      ports: [3000, 8080],
      created: [{ name: "on_create", commands: [["pip", "install", "-r", "requirements.txt"]] }],
      started: [{ name: "on_start", commands: ["rm -rf /tmp/cache"] }],
      served: [{ name: "serve", commands: ["python3 -m http.server"] }],
      notes: [],
    });
    expect(manifest("network = []").request).toEqual({ network: "none" });
    expect(manifest("")).toMatchObject({ image: null, name: "app", request: {}, target: null });
  });

  test.each([
    ["imag = 'x'", "there is no setting imag; there are name, image"],
    ["timeout = '8 hours'", "timeout must be a duration"],
    ["memory = 'much'", "memory must be a size"],
    ["on_timeout = 'stop'", "on_timeout must be pause or end"],
    ["ports = ['db:1']", "ports has db:1, which is on another host"],
    ["env = 'A=b'", "env must be an object of texts"],
  ])("with %s is refused", (text, reason) => {
    expect(() => manifest(text)).toThrow(`coppice.toml: ${reason}`);
  });

  test("in another format is refused", () => {
    expect(() => manifest("a = = b")).toThrow("coppice.toml is not TOML");
  });
});

test("the name of a sandbox is made from any text", () => {
  const texts = ["dev", "My App (2)", "--x--", "Ünïcode", "", "…", "a".repeat(60), `${"a".repeat(39)}-b`];
  expect(texts.map(sandboxNameOf)).toEqual([
    ...["dev", "my-app-2", "x", "n-code", "box", "box", "a".repeat(40), "a".repeat(39)],
  ]);
});
