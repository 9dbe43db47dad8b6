/** Builds the root file system of the guests of the ring `network` if it is missing; runs outside the ring's network. */
import { buildRoot } from "./guest-image.ts";

await buildRoot();
