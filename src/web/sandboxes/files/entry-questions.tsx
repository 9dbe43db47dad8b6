import { useState } from "preact/hooks";
import type { ListingItem } from "../../../client/types.ts";
import { childOf, shownText } from "../../image/paths.ts";
import { Confirm } from "../../parts/dialog.tsx";
import { Field } from "../../parts/field.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { makeDirectory, makeFile, moveEntry, type Place, removeEntry } from "./calls.ts";

/** A question about an entry of a directory, or about a new one. */
export type EntryAsking =
  | { readonly action: "directory" | "file" }
  | { readonly action: "rename" | "remove"; readonly item: ListingItem }
  | { readonly action: "replace"; readonly names: readonly string[]; readonly onConfirm: () => void };

interface EntryQuestionProps {
  readonly asking: EntryAsking;
  /** the directory */
  readonly place: Place;
  readonly onClose: () => void;
  readonly onChange: () => void;
}

export function EntryQuestion({ asking, place, onClose, onChange }: EntryQuestionProps) {
  switch (asking.action) {
    case "directory":
      return (
        <NameQuestion
          title="New directory"
          action="Make it"
          onClose={onClose}
          onName={async (name) => {
            await makeDirectory({ ...place, path: childOf(place.path, { name }) });
            onChange();
          }}
        />
      );
    case "file":
      return (
        <NameQuestion
          title="New file"
          action="Make it"
          onClose={onClose}
          onName={async (name) => {
            await makeFile({ ...place, path: childOf(place.path, { name }) });
            onChange();
          }}
        />
      );
    case "rename": {
      const { item } = asking;
      return (
        <NameQuestion
          title={<>Rename {nameOf(item)}</>}
          action="Rename"
          initial={item.name_base64 === undefined ? item.name : ""}
          onClose={onClose}
          onName={async (name) => {
            const own = { ...place, path: childOf(place.path, item) };
            await moveEntry(own, childOf(place.path, { name }));
            onChange();
          }}
        />
      );
    }
    case "remove":
      return <RemoveQuestion item={asking.item} place={place} onClose={onClose} onChange={onChange} />;
    case "replace":
      return (
        <Confirm title="Replace files?" action="Replace" isDangerous onClose={onClose} onConfirm={asking.onConfirm}>
          <p>These are in the directory already:</p>
          <ul>
            {asking.names.slice(0, NAMES_MAX).map((name) => (
              <li key={name}>
                <GuestText text={name} isMono />
              </li>
            ))}
          </ul>
          {asking.names.length > NAMES_MAX ? <p class="muted">{asking.names.length - NAMES_MAX} more</p> : null}
        </Confirm>
      );
  }
}

/** Largest number of names in a question. */
const NAMES_MAX = 8;

const nameOf = ({ name, name_base64: bytes }: ListingItem) => <GuestText text={shownText(name, bytes)} isMono />;

interface NameQuestionProps {
  readonly title: preact.ComponentChildren;
  readonly action: string;
  readonly initial?: string;
  readonly onClose: () => void;
  readonly onName: (name: string) => Promise<void>;
}

function NameQuestion({ title, action, initial = "", onClose, onName }: NameQuestionProps) {
  const [name, setName] = useState(initial);
  const isName = name !== "" && name !== "." && name !== ".." && !name.includes("/") && name !== initial;
  return (
    <Confirm title={title} action={action} isReady={isName} onClose={onClose} onConfirm={() => onName(name)}>
      <Field
        label="Name"
        isMono
        value={name}
        onValue={setName}
        problem={name.includes("/") ? "a name has no slash" : undefined}
      />
    </Confirm>
  );
}

function RemoveQuestion({
  item,
  place,
  onClose,
  onChange,
}: Omit<EntryQuestionProps, "asking"> & { readonly item: ListingItem }) {
  return (
    <Confirm
      title={<>Remove {nameOf(item)}?</>}
      action="Remove"
      isDangerous
      onClose={onClose}
      onConfirm={async () => {
        await removeEntry({ ...place, path: childOf(place.path, item) }, item.is_dir);
        onChange();
      }}
    >
      <p>{item.is_dir ? "Everything below it is removed, too. " : ""}A saved state of the sandbox may still have it.</p>
    </Confirm>
  );
}
