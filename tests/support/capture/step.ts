import type { Appliance } from "../appliance/appliance.ts";
import type { Inspector } from "./inspect.ts";
import { Model, type Operation } from "./model.ts";
import { type ProgramRun, runProgram, scriptLine, uploadProgram } from "./program.ts";
import { adoptTimes, differences, type View, viewOfModel } from "./view.ts";

/** Maximum number of differences in an error. */
const SHOWN_COUNT = 10;

/** An image with the model of the tree below the test's directory. */
export interface KnownImage {
  readonly id: string;
  readonly model: Model;
  /** runs after the first */
  readonly depth: number;
}

/** Images that are compared with a model, one run after the other. */
export class CaptureSteps {
  readonly #appliance: Appliance;
  readonly #inspector: Inspector;
  readonly #directory: string;
  /** added to the request of every run */
  readonly #request: Record<string, unknown>;

  constructor(
    parts: { readonly appliance: Appliance; readonly inspector: Inspector },
    directory: string,
    request: Record<string, unknown> = {},
  ) {
    this.#appliance = parts.appliance;
    this.#inspector = parts.inspector;
    this.#directory = directory;
    this.#request = request;
  }

  /** Puts the program and the empty directory into an image. */
  async first(base: string): Promise<KnownImage> {
    const files = await uploadProgram(this.#appliance);
    const operations: Operation[] = [["mkdir", this.#directory, 0o755]];
    const run = await this.#run(base, operations, { files });
    const model = new Model(this.#directory);
    adoptTimes(model, run.after, { from: 0n, to: 2n ** 63n });
    return { id: run.image, model: model.captured(), depth: 0 };
  }

  /** Applies operations to an image, and compares all views of the result. @throws Error with the differences */
  async step(parent: KnownImage, operations: readonly Operation[]): Promise<KnownImage & { readonly view: View }> {
    const model = parent.model.captured();
    const errors = operations.map((operation) => model.apply(operation));
    const from = BigInt(Date.now()) * 1_000_000n;
    const run = await this.#run(parent.id, operations);
    requireSame("a fresh machine sees another image than was captured", viewOfModel(parent.model), run.before);
    const unlike = operations.flatMap((operation, at) =>
      run.results[at] === errors[at] ? [] : [`${scriptLine(operation).trim()}: ${errors[at]}, not ${run.results[at]}`],
    );
    requireNone("operations end unlike the model's", unlike);
    const wrong = adoptTimes(model, run.after, { from, to: BigInt(Date.now()) * 1_000_000n });
    requireNone("times that no clock gave", wrong);
    const view = viewOfModel(model);
    requireSame("the program saw what the model does not have", view, run.after);
    requireSame("inspection shows another image", view, await this.#inspector.view(run.image, this.#directory));
    return { id: run.image, model: model.captured(), depth: parent.depth + 1, view };
  }

  /** Walks an image in a machine of its own. */
  async walk({ id, model }: KnownImage): Promise<void> {
    const { before } = await this.#run(id, [], { disposable: true });
    requireSame("a fresh machine sees another image than was captured", viewOfModel(model), before);
  }

  async #run(image: string, operations: readonly Operation[], more: Record<string, unknown> = {}): Promise<ProgramRun> {
    const request = { ...this.#request, ...more };
    try {
      return await runProgram(this.#appliance, image, { directory: this.#directory, operations, request });
    } catch (error) {
      throw new Error(`${(error as Error).message}\n${operations.map(scriptLine).join("")}`);
    }
  }
}

function requireSame(what: string, expected: View, actual: View): void {
  requireNone(what, differences(expected, actual, SHOWN_COUNT));
}

function requireNone(what: string, problems: readonly string[]): void {
  if (problems.length > 0) throw new Error(`${what}:\n${problems.slice(0, SHOWN_COUNT).join("\n")}`);
}
