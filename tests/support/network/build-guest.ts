/** Builds the root file system of the guests of the ring `network`, unless it is there; outside the ring's own network. */
import { buildRoot } from "./guest-image.ts";

await buildRoot();
