import { areKeysOn, shortcuts, turnKeys } from "../browser/keys.ts";
import { useSession } from "../data/session.ts";
import { useStore } from "../data/store.ts";
import { Dialog } from "../parts/dialog.tsx";
import { Checkbox } from "../parts/field.tsx";

/** Keys of lists, trees and menus, which are not shortcuts of the page. */
const IN_LISTS = [
  { keys: "↑ ↓", text: "Move" },
  { keys: "Home End", text: "First and last" },
  { keys: "Enter", text: "Open" },
  { keys: "Esc", text: "Close" },
] as const;

/** The shortcuts of the present view. */
export function Help({ onClose }: { readonly onClose: () => void }) {
  const entries = useStore(shortcuts);
  const isOn = useStore(areKeysOn);
  const { version } = useSession();
  const groups = [...new Set(entries.map(({ group }) => group))];
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <div class="keys">
        {groups.map((group) => (
          <KeyList key={group} name={group} keys={entries.filter((entry) => entry.group === group)} />
        ))}
        <KeyList name="Lists, trees and menus" keys={IN_LISTS} />
      </div>
      <Checkbox
        label="Single-key shortcuts"
        hint="Turn them off if you dictate text or press keys by accident."
        isChecked={isOn}
        onChecked={turnKeys}
      />
      <p class="muted">Coppice {version}</p>
    </Dialog>
  );
}

function KeyList(props: {
  readonly name: string;
  readonly keys: readonly { readonly keys: string; readonly text: string }[];
}) {
  return (
    <section>
      <h3>{props.name}</h3>
      <dl class="key-list">
        {props.keys.map(({ keys, text }) => (
          <div key={keys} class="row between gap-4">
            <dt>{text}</dt>
            <dd class="flex gap-1">
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
