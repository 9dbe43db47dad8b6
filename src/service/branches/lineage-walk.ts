import { type LineageState, lineage, lineageStates } from "../../db/images/history.ts";
import { layersByTime } from "../../db/images/layers.ts";
import { ApiError } from "../../domain/errors.ts";
import type { ImageId, LayerId } from "../../domain/ids.ts";
import type { LayerChain } from "../../storage/layers/layer-store.ts";
import { Pacer } from "../../storage/pacer.ts";
import type { LayerFiles } from "../../storage/tree/open-layers.ts";
import { readerOf } from "../inspection/layers.ts";
import type { Principal, ServiceParts } from "../parts.ts";

/** Steps that are read in one turn of the event loop: about a millisecond. */
const STEPS_COUNT = 200;
/** States that one request keeps; a search that needs more has reached its limit. */
const STATES_COUNT_MAX = 20_000;

/** Two states of a lineage whose files are known, the next one made from the other. */
export interface Transition {
  /** the image whose making led from the state before to this one */
  readonly imageId: ImageId;
  /** number of the step in the lineage; the image that was asked for is 0 */
  readonly at: number;
  /** the number of the state before; null when there is none */
  readonly next: number | null;
  /** number of deleted states between both, whose files are unknown */
  readonly unknownCount: number;
  /** The layers of this state and of the one before, lowest first. */
  layers(): { readonly now: readonly LayerFiles[]; readonly before: readonly LayerFiles[] };
  /** layers that only one of both has */
  readonly own: readonly LayerFiles[];
}

interface KnownState {
  readonly imageId: ImageId;
  readonly at: number;
  readonly layerId: LayerId;
  readonly isRoot: boolean;
  /** number of unknown states directly above, which were made from this one */
  readonly unknownAbove: number;
}

/**
 * The states of an image's lineage, from the newest one. Layers are those of the images themselves: a merged layer is only a
 * cache for machines. The layer of a deleted state is known when a later state lies on it. It is unknown only for a deleted
 * state of a sandbox, whose later states have layers of their own on the image from which its instance started.
 */
export class LineageWalk implements Disposable {
  readonly #parts: ServiceParts;
  readonly #principal: Principal;
  readonly #pacer: Pacer;
  readonly #held = new DisposableStack();
  readonly #image: LayerChain;
  /** positions in the chain of the image */
  readonly #positions: ReadonlyMap<LayerId, number>;
  readonly #layersMadeAt: ReadonlyMap<number, LayerId>;
  readonly #states: KnownState[] = [];
  readonly #transitions: Transition[] = [];
  /** chains of states that do not lie below the image */
  readonly #others = new Map<LayerId, LayerChain>();
  #pending: ImageId | null;
  #count: number;
  #unknownCount = 0;

  private constructor(
    parts: ServiceParts,
    principal: Principal,
    from: { readonly layerId: LayerId; readonly imageId: ImageId; readonly at: number },
    signal: AbortSignal,
  ) {
    this.#parts = parts;
    this.#principal = principal;
    this.#pacer = new Pacer(readerOf(principal.accountId, signal));
    this.#image = this.#held.use(parts.layers.open(from.layerId));
    this.#positions = new Map(this.#image.ids.map((id, position) => [id, position]));
    this.#layersMadeAt = layersByTime(parts.db, from.layerId);
    this.#pending = from.imageId;
    this.#count = from.at;
  }

  /**
   * Opens the lineage of an image, beginning with the step number `at`.
   * @throws ApiError `not_found` when there is no such step, or its state was deleted since the page before
   */
  static async open(
    parts: ServiceParts,
    principal: Principal,
    image: { readonly id: ImageId; readonly layerId: LayerId },
    { at, signal }: { readonly at: number; readonly signal: AbortSignal },
  ): Promise<LineageWalk> {
    const { accountId } = principal;
    const [step] = at === 0 ? [] : await lineage(parts.db, image.id, { limit: 1, offset: at }, { accountId, signal });
    const imageId = at === 0 ? image.id : step?.imageId;
    const gone = () => new ApiError("not_found", "the page's first state is not in the lineage", { uuid: image.id });
    if (imageId === undefined) throw gone();
    const walk = new LineageWalk(parts, principal, { layerId: image.layerId, imageId, at }, signal);
    try {
      if ((await walk.#state(0))?.at !== at) throw gone();
      return walk;
    } catch (error) {
      walk[Symbol.dispose]();
      throw error;
    }
  }

  /** The layers of the image, lowest first. */
  get image(): LayerChain {
    return this.#image;
  }

  /** The transition number `index`, the newest one first; null behind the last one, "limit" behind the last that is read. */
  async transition(index: number): Promise<Transition | "limit" | null> {
    const stored = this.#transitions[index];
    if (stored !== undefined) return stored;
    const state = await this.#state(index);
    if (state === null) return this.#pending === null ? null : "limit";
    const below = state.isRoot ? null : await this.#state(index + 1);
    if (below === null && !state.isRoot && this.#pending !== null) return "limit";
    const transition: Transition = {
      imageId: state.imageId,
      at: state.at,
      next: below?.at ?? null,
      unknownCount: below?.unknownAbove ?? 0,
      // A long lineage has many, and few of them are compared.
      layers: () => ({ now: this.#layersOf(state), before: below === null ? [] : this.#layersOf(below) }),
      own: this.#ownLayers(state, below),
    };
    this.#transitions[index] = transition;
    return transition;
  }

  /** The layers that only one of two states has. */
  #ownLayers(state: KnownState, below: KnownState | null): readonly LayerFiles[] {
    const top = this.#positions.get(state.layerId);
    const bottom = below === null ? -1 : this.#positions.get(below.layerId);
    if (top !== undefined && bottom !== undefined) {
      return this.#image.files.slice(Math.min(top, bottom) + 1, Math.max(top, bottom) + 1);
    }
    const now = this.#layersOf(state);
    const before = below === null ? [] : this.#layersOf(below);
    let shared = 0;
    while (shared < now.length && now[shared]?.index === before[shared]?.index) shared++;
    return [...now.slice(shared), ...before.slice(shared)];
  }

  [Symbol.dispose](): void {
    this.#held.dispose();
  }

  async #state(index: number): Promise<KnownState | null> {
    while (this.#states.length <= index && this.#pending !== null && this.#states.length < STATES_COUNT_MAX) {
      await this.#pacer.yield();
      const states = lineageStates(this.#parts.db, this.#principal.accountId, this.#pending, STEPS_COUNT);
      for (const state of states) this.#add(state);
      this.#pending = states.length < STEPS_COUNT ? null : (states.at(-1)?.parentId ?? null);
    }
    return this.#states[index] ?? null;
  }

  #add(state: LineageState): void {
    const { imageId } = state;
    const at = this.#count++;
    const isRoot = state.parentId === null;
    // A step that added nothing has the layer of its parent, and so did not change a file.
    if (state.layerId === null && state.sizeBytes === 0 && !isRoot) return;
    const layerId = this.#layerOf(state);
    if (layerId === null) this.#unknownCount++;
    else {
      this.#states.push({ imageId, at, layerId, isRoot, unknownAbove: this.#unknownCount });
      this.#unknownCount = 0;
    }
  }

  /** The top layer of a state; null when it is unknown. */
  #layerOf({ layerId, parentId, createdAt }: LineageState): LayerId | null {
    const { layers } = this.#parts;
    if (layerId !== null) {
      if (this.#positions.has(layerId) || this.#others.has(layerId)) return layerId;
      // The row of the image was read in this turn, so the layers exist.
      const other = this.#held.use(layers.open(layerId));
      this.#others.set(layerId, other);
      return layerId;
    }
    if (parentId === null) return this.#image.ids[0] ?? null;
    // A layer is published together with the image of its run, in one transaction and with one time.
    return this.#layersMadeAt.get(createdAt) ?? null;
  }

  #layersOf({ layerId }: KnownState): readonly LayerFiles[] {
    const position = this.#positions.get(layerId);
    return position === undefined
      ? (this.#others.get(layerId) as LayerChain).files
      : this.#image.files.slice(0, position + 1);
  }
}
