import type { ComponentChildren } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { navigate } from "../browser/router.ts";
import { classes } from "./classes.ts";
import { Icon, type IconName } from "./icon.tsx";

export interface MenuItem {
  readonly label: string;
  readonly icon?: IconName;
  /** the action; or `href`, the link */
  readonly onSelect?: () => void;
  readonly href?: string;
  readonly isDangerous?: boolean;
  /** for a choice: whether it is selected */
  readonly isChecked?: boolean;
  readonly isDisabled?: boolean;
  /** the shortcut of the same action */
  readonly keys?: string;
  /** true: a line above it */
  readonly isApart?: boolean;
}

export interface MenuProps {
  /** subject of the menu, for screen readers; the tooltip of a button without text */
  readonly label: string;
  readonly items: readonly MenuItem[];
  readonly icon?: IconName;
  /** the word on the button; absent: the icon alone */
  readonly children?: ComponentChildren;
  readonly isSmall?: boolean;
}

/** A button that opens a menu. */
export function Menu({ label, items, icon = "more", children, isSmall }: MenuProps) {
  const [isOpen, setOpen] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const isBare = children === undefined;
  const name = classes("button", isBare ? "button-icon button-quiet" : "button-plain", isSmall && "button-small");
  const openByKey = (event: KeyboardEvent) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    setOpen(true);
  };
  return (
    <>
      <button
        ref={button}
        type="button"
        class={name}
        aria-haspopup="menu"
        aria-expanded={isOpen}
        aria-label={isBare ? label : undefined}
        title={isBare ? label : undefined}
        onClick={() => setOpen(!isOpen)}
        onKeyDown={openByKey}
      >
        {isBare ? <Icon name={icon} /> : children}
      </button>
      {isOpen ? (
        <MenuList
          label={label}
          items={items}
          at={() => button.current?.getBoundingClientRect() ?? new DOMRect()}
          onClose={() => setOpen(false)}
          opener={button.current}
        />
      ) : null}
    </>
  );
}

export interface MenuListProps {
  readonly label: string;
  readonly items: readonly MenuItem[];
  /** its anchor, in `CSS pixels` of the window: a button, a row, or the position of the pointer */
  readonly at: () => DOMRect;
  readonly onClose: () => void;
  /** gets the focus back; a click on it does not close the menu */
  readonly opener?: HTMLElement | null;
}

/** A menu, open while it is shown: for rows and nodes that have no button. */
export function MenuList({ label, items, at, onClose, opener = null }: MenuListProps) {
  const list = useRef<HTMLDivElement>(null);
  const id = useId();
  const before = useRef(opener ?? (document.activeElement as HTMLElement | null));
  useLayoutEffect(() => {
    const element = list.current;
    if (element === null) return;
    element.showPopover();
    place(element, at());
    choices(element)[0]?.focus();
    const leave = (event: Event) => {
      const target = event.target as Node;
      if (!element.contains(target) && opener?.contains(target) !== true) onClose();
    };
    document.addEventListener("pointerdown", leave, true);
    const stay = () => place(element, at());
    addEventListener("resize", stay);
    return () => {
      document.removeEventListener("pointerdown", leave, true);
      removeEventListener("resize", stay);
    };
  }, []);
  // The opener may have moved during the drawing.
  useEffect(() => {
    if (list.current !== null) place(list.current, at());
  }, []);
  const close = () => {
    before.current?.focus();
    onClose();
  };
  const select = (item: MenuItem) => {
    close();
    item.onSelect?.();
    if (item.href !== undefined) navigate(item.href);
  };
  return (
    <div
      ref={list}
      id={id}
      class="menu"
      role="menu"
      aria-label={label}
      popover="manual"
      tabIndex={-1}
      onKeyDown={(event) => onKey(event, close)}
    >
      {items.map((item) => (
        <button
          key={item.label}
          type="button"
          class={classes(
            "menu-item row gap-2",
            item.isDangerous && "danger",
            item.isApart && "menu-item-apart relative",
          )}
          {...(item.isChecked === undefined
            ? { role: "menuitem" }
            : { role: "menuitemradio", "aria-checked": item.isChecked })}
          aria-disabled={item.isDisabled}
          tabIndex={-1}
          onClick={() => (item.isDisabled === true ? undefined : select(item))}
        >
          <span class="menu-icon flex rigid muted">{iconOf(item)}</span>
          <span class="fill">{item.label}</span>
          {item.keys === undefined ? null : <kbd>{item.keys}</kbd>}
        </button>
      ))}
    </div>
  );
}

function iconOf({ icon, isChecked }: MenuItem) {
  if (isChecked === true) return <Icon name="check" />;
  return icon === undefined ? null : <Icon name={icon} />;
}

function choices(list: HTMLElement): HTMLElement[] {
  return [...list.querySelectorAll<HTMLElement>(".menu-item")];
}

/** Places the menu below its anchor, or above if there is no space; never outside the window. */
function place(list: HTMLElement, at: DOMRect): void {
  const { width, height } = list.getBoundingClientRect();
  const isRightHalf = at.left > innerWidth / 2;
  const left = isRightHalf ? at.right - width : at.left;
  const below = at.bottom + 4;
  const top = below + height <= innerHeight - 8 ? below : at.top - height - 4;
  list.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
  list.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8))}px`;
}

function onKey(event: KeyboardEvent, close: () => void): void {
  const items = choices(event.currentTarget as HTMLElement);
  const at = items.indexOf(document.activeElement as HTMLElement);
  const go = (index: number) => items.at(index % items.length)?.focus();
  const letter = event.key.length === 1 ? event.key.toLowerCase() : "";
  // The page and the opener get no keys while the menu is open.
  event.stopPropagation();
  if (event.key === "ArrowDown") go(at + 1);
  else if (event.key === "ArrowUp") go(Math.max(at, 0) - 1);
  else if (event.key === "Home") go(0);
  else if (event.key === "End") go(-1);
  else if (event.key === "Escape" || event.key === "Tab") close();
  else if (letter.trim() !== "") {
    const rest = [...items.slice(at + 1), ...items.slice(0, at + 1)];
    rest.find((item) => item.textContent?.trim().toLowerCase().startsWith(letter))?.focus();
    return;
  } else return;
  event.preventDefault();
}
