import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { Link } from "../browser/router.ts";
import { useSession } from "../data/session.ts";
import { Button, ButtonLink } from "../parts/button.tsx";
import { Identifier } from "../parts/copy-button.tsx";
import { Age, Bytes } from "../parts/figure.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { kindLabel, StatusMark } from "../parts/status-mark.tsx";
import { countOf, countText, shortId } from "../text/format.ts";
import { type ItemActions, linkToImage, linkToRunHere } from "./actions.ts";
import type { Item } from "./model/folds.ts";
import { type ImageNode, lineageOf } from "./model/forest.ts";
import { runName, sumOf, titleOf } from "./model/text.ts";

interface DetailsProps {
  readonly item: Item;
  readonly actions: ItemActions;
  readonly onReveal: (id: string) => void;
}

/** Facts of the selected item, and the actions on it. */
export function Details({ item, actions, onReveal }: DetailsProps) {
  if (item.kind === "image") return <ImageDetails image={item.image} actions={actions} onReveal={onReveal} />;
  if (item.kind === "run") {
    return (
      <>
        <h2 class="row">{runName(item.run)}</h2>
        {item.run.command === null ? null : <Command text={item.run.command} />}
        <div class="flex wrap gap-2">
          <ButtonLink href={`/runs/${item.run.id}`} tone="primary" icon="run">
            Open the run
          </ButtonLink>
        </div>
      </>
    );
  }
  const { failed, addedBytes } = sumOf(item.images);
  return (
    <>
      <h2 class="row">{titleOf(item)}</h2>
      <p class="muted">
        {item.kind === "steps" ? "A chain of runs without branches or tags." : "Older images from the same parent."}
      </p>
      <dl class="branches-facts">
        <Fact name="Failed">{countText(failed)}</Fact>
        <Fact name="Size added">
          <Bytes value={addedBytes} isSigned />
        </Fact>
      </dl>
      <div class="flex wrap gap-2">
        <Button icon="plus" onClick={() => actions.onToggle(item)}>
          Show them
        </Button>
      </div>
    </>
  );
}

function Fact({ name, children }: { readonly name: string; readonly children: ComponentChildren }) {
  return (
    <div class="baseline between flex gap-3">
      <dt class="muted">{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Command({ text }: { readonly text: string }) {
  return (
    <pre class="branches-code small">
      <GuestText text={text} isMono isLong />
    </pre>
  );
}

function ImageDetails({ image, actions, onReveal }: Omit<DetailsProps, "item"> & { readonly image: ImageNode }) {
  return (
    <>
      <h2 class="row ellipsis">
        <GuestText text={image.tag ?? shortId(image.id)} isMono={image.tag === null} hasTitle />
      </h2>
      <div class="branches-id muted small">
        <Identifier id={image.id} />
      </div>
      {image.command === null ? null : <Command text={image.command} />}
      <dl class="branches-facts">
        <Fact name="Created">
          <Age at={image.createdAt} />
        </Fact>
        {image.origin === "instance" ? (
          <Fact name="Status">
            <StatusMark status="SUCCESS" exitCode={image.exitCode} isTimedOut={image.timedOut} />
          </Fact>
        ) : null}
        <Fact name="Operation">
          <Link href={`/runs/${image.operation}`}>{kindLabel(image.origin)}</Link>
        </Fact>
        <Fact name="Size added">
          <Bytes value={image.addedBytes} isSigned />
        </Fact>
        <Fact name="Made from it">{image.below === 0 ? "nothing" : countOf(image.below, "image")}</Fact>
      </dl>
      <Way image={image} onReveal={onReveal} />
      <ImageActions image={image} actions={actions} />
    </>
  );
}

/** The parent, tagged ancestors and the root. */
function Way({ image, onReveal }: { readonly image: ImageNode; readonly onReveal: (id: string) => void }) {
  const names = useMemo(() => namedAbove(image), [image, image.parent]);
  if (names.length === 0) return null;
  return (
    <nav class="branches-way" aria-label="Ancestors">
      <h3>From</h3>
      <ul>
        {names.map(({ ancestor, steps }) => (
          <li key={ancestor.id} class="baseline between flex gap-3">
            <button type="button" class="text-button" onClick={() => onReveal(ancestor.id)}>
              <GuestText text={ancestor.tag ?? shortId(ancestor.id)} isMono={ancestor.tag === null} />
            </button>
            <span class="muted number">{steps} up</span>
          </li>
        ))}
      </ul>
    </nav>
  );
}

/** Largest number of listed ancestors. */
const NAMES_MAX = 5;

function namedAbove(image: ImageNode): { readonly ancestor: ImageNode; readonly steps: number }[] {
  const above = [...lineageOf(image.parent)].map((ancestor, index) => ({ ancestor, steps: index + 1 }));
  return above
    .filter(({ ancestor, steps }) => steps === 1 || ancestor.tag !== null || ancestor.parent === null)
    .slice(0, NAMES_MAX);
}

/** The actions of the image, as buttons. */
function ImageActions({ image, actions }: { readonly image: ImageNode; readonly actions: ItemActions }) {
  const { may } = useSession();
  return (
    <div class="flex wrap gap-2">
      <ButtonLink href={linkToImage(image.id)} tone="primary" icon="image">
        Open
      </ButtonLink>
      {may("instances:spawn") ? (
        <ButtonLink href={linkToRunHere(image.id)} icon="run">
          Run here
        </ButtonLink>
      ) : null}
      {may("images:tag") ? (
        <Button icon="tag" onClick={() => actions.onTag(image)}>
          Tag
        </Button>
      ) : null}
      <Button icon="compare" onClick={() => actions.onCompare(image)}>
        Compare
      </Button>
      <Button icon="filter" onClick={() => actions.onFocus(actions.focusId === image.id ? null : image)}>
        {actions.focusId === image.id ? "Show all" : "This branch alone"}
      </Button>
      {may("images:delete") ? (
        <Button icon="trash" tone="quiet" onClick={() => actions.onDelete(image)}>
          Delete
        </Button>
      ) : null}
    </div>
  );
}
