import { until } from "../../support/waiting.ts";
import type { Box } from "./box.ts";
import { counted } from "./stage.ts";

const PORT_MIN = 2000;
const PORTS_COUNT = 60_000;
const PROGRAM_SECONDS = 60;

/** Sends bytes to a port of the sandbox, which come back. */
export async function echo(box: Box): Promise<void> {
  const { stage, log } = box;
  stage.count += 1;
  const token = `echo-${stage.count}\n`;
  const port = PORT_MIN + (stage.count % PORTS_COUNT);
  const { faults, appliance } = stage;
  const since = faults.now;
  const command = `exec timeout ${PROGRAM_SECONDS} nc -l -p ${port} -e cat`;
  const spid = await box.process({ command, shell: true });
  if (spid === null) return;
  let received = "";
  const isOver = () => box.isDisturbed(since) || (log.processes.get(spid)?.exit ?? null) !== null;
  await until("the echo comes", async () => {
    if (isOver()) return true;
    received = await echoOf(`${appliance.url}/v1/sandboxes/${box.id}/ports/${port}`, appliance.token, token);
    return received !== "";
  }).catch((error: Error) => box.problem(error.message));
  if (received === token) counted(stage, "echo");
  else if (!box.isDisturbed(since)) box.problem(`port ${port} sent "${received}" for "${token.trim()}"`);
}

/** Asks a server of the outside, through the process that connects to it. */
export async function fetchOutside(box: Box): Promise<void> {
  const { stage, log } = box;
  stage.count += 1;
  const { host, port } = stage.outside;
  const path = `/path-${stage.count}`;
  const since = stage.faults.now;
  const command = `exec timeout ${PROGRAM_SECONDS} wget -q -O - http://${host}:${port}${path}`;
  const spid = await box.process({ command, shell: true });
  if (spid === null) return;
  const process = () => log.processes.get(spid);
  await box.untilOver(() => (process()?.exit ?? null) !== null, `process ${spid} asks the outside`);
  const { exit, text } = process() ?? {};
  if (exit?.exit_code === 0 && text?.endsWith(path) === true) counted(stage, "fetch");
  else if (!stage.faults.wasCut(since) && !box.isDisturbed(since))
    box.problem(`the outside: ${JSON.stringify({ exit, text })}`);
}

/** The first bytes that a port sends back; empty when the connection fails. */
async function echoOf(url: string, token: string, text: string): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>();
  const socket = new WebSocket(url.replace("http", "ws"), { headers: { authorization: `Bearer ${token}` } } as never);
  socket.binaryType = "nodebuffer" as never;
  let received = "";
  socket.onopen = () => socket.send(Buffer.from(text));
  socket.onmessage = ({ data }) => {
    received += String(data);
    if (received.length >= text.length) resolve(received);
  };
  socket.onerror = () => resolve(received);
  socket.onclose = () => resolve(received);
  const result = await promise;
  socket.close();
  return result;
}
