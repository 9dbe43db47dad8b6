import type { Config } from "../../config/config.ts";
import { dataLayout } from "../../storage/layout.ts";
import type { Finding } from "../../supervisor/health/finding.ts";
import { leftFinding, restartFinding } from "../../supervisor/health/restart.ts";
import { CliError } from "../command.ts";
import { leftCount } from "../host/left-machines.ts";
import { runningOf } from "../host/running.ts";

/** The effect of a restart on what runs in the data directory. */
export async function restartFindingOf({ dataDir }: Pick<Config, "dataDir">): Promise<Finding> {
  const layout = dataLayout(dataDir);
  try {
    const running = await runningOf(layout);
    if (running === "none") return leftFinding(await leftCount(layout));
    return restartFinding(running === "older" ? { leavesInstances: false, operations: [] } : running);
  } catch (error) {
    if (!(error instanceof CliError)) throw error;
    const meaning = "only the user of the appliance can ask it what runs";
    return { name: "restart", state: "note", summary: error.message, meaning, fix: null };
  }
}
