/** Installs the clients that the ring `e2b` needs, and builds its guest. Says what is missing when a registry is not reached. */
import { installClient, neededClients } from "./clients.ts";
import { guestArchive } from "./guest.ts";

const waiting = neededClients();
const problems: string[] = [];

/** Installs one client after the other. */
async function lane(): Promise<void> {
  for (let client = waiting.shift(); client !== undefined; client = waiting.shift()) {
    const { packages } = client;
    await installClient(client).catch((error: Error) => problems.push(`${packages.join(", ")}: ${error.message}`));
  }
}

await Promise.all([lane(), lane(), guestArchive()]);
for (const problem of problems) process.stderr.write(`cannot install ${problem}\n`);
if (problems.length > 0) {
  process.stderr.write(
    "the ring e2b needs the registries of Python and npm; COPPICE_TEST_E2B=offline uses what is installed\n",
  );
  process.exit(1);
}
