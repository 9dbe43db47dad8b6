import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { useShortcut } from "../browser/keys.ts";
import { Link, navigate, useRoute } from "../browser/router.ts";
import { chooseTheme, type ThemeChoice, themeChoice } from "../browser/theme.ts";
import { useChanges } from "../data/changes.ts";
import { connection } from "../data/connection.ts";
import { problemOf } from "../data/problem.ts";
import { isUpgraded, useSession } from "../data/session.ts";
import { useStore } from "../data/store.ts";
import { IconButton } from "../parts/button.tsx";
import { Icon } from "../parts/icon.tsx";
import { Menu, type MenuItem } from "../parts/menu.tsx";
import { useToast } from "../parts/toast.tsx";
import { printable } from "../text/printable.ts";
import { Help } from "./help.tsx";
import { Mark } from "./mark.tsx";
import { DESTINATIONS, type Destination, placeOf } from "./routes.tsx";
import { preload } from "./view-slot.tsx";

const ignore = () => undefined;

const THEMES = [
  { choice: "system", label: "System theme", icon: "system" },
  { choice: "light", label: "Light theme", icon: "sun" },
  { choice: "dark", label: "Dark theme", icon: "moon" },
] as const satisfies readonly { choice: ThemeChoice; label: string; icon: string }[];

/** The frame of every view: navigation, account menu and notes. */
export function Frame({ children }: { readonly children: ComponentChildren }) {
  const [isHelpOpen, setHelpOpen] = useState(false);
  // The stream tells when the session or the appliance ends, also where a view listens to no changes.
  useChanges(ignore);
  useShortcut({ keys: "?", text: "Keyboard shortcuts", group: "Everywhere" }, () => setHelpOpen(true));
  return (
    <div class="frame stack">
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="bar row">
        <Link class="bar-home row gap-2 strong" href="/" aria-label="Coppice">
          <Mark />
          <span class="bar-name">Coppice</span>
        </Link>
        <nav class="bar-places flex gap-1" aria-label="Main">
          {DESTINATIONS.map((destination) => (
            <PlaceLink key={destination.href} {...destination} />
          ))}
        </nav>
        <div class="bar-end push row gap-1">
          <span class="bar-help">
            <IconButton icon="help" label="Keyboard shortcuts" onClick={() => setHelpOpen(true)} />
          </span>
          <AccountMenu onHelp={() => setHelpOpen(true)} />
        </div>
      </header>
      <ConnectionLine />
      <Main>{children}</Main>
      {isHelpOpen ? <Help onClose={() => setHelpOpen(false)} /> : null}
    </div>
  );
}

function PlaceLink({ label, href, icon, keys, paths }: Destination) {
  const { path } = useRoute();
  useShortcut({ keys, text: `Go to ${label.toLowerCase()}`, group: "Everywhere" }, () => navigate(href));
  const prepare = () => {
    const place = placeOf(href);
    if (place !== undefined) void preload(place);
  };
  return (
    <Link
      class="bar-place relative row gap-2 medium quiet"
      href={href}
      aria-current={paths.test(path) ? "page" : undefined}
      onPointerEnter={prepare}
      onFocus={prepare}
    >
      <Icon name={icon} />
      <span>{label}</span>
    </Link>
  );
}

function AccountMenu({ onHelp }: { readonly onHelp: () => void }) {
  const { account, signOut } = useSession();
  const choice = useStore(themeChoice);
  const toast = useToast();
  const leave = async () => {
    try {
      await signOut();
    } catch (error) {
      toast(problemOf(error).message, { isProblem: true });
    }
  };
  const items: MenuItem[] = [
    ...THEMES.map((theme) => ({
      label: theme.label,
      icon: theme.icon,
      isChecked: theme.choice === choice,
      onSelect: () => chooseTheme(theme.choice),
    })),
    { label: "Keyboard shortcuts", icon: "help", keys: "?", isApart: true, onSelect: onHelp },
    { label: "Sign out", icon: "person", isApart: true, onSelect: () => void leave() },
  ];
  return (
    <Menu label="Account" items={items}>
      <Icon name="person" />
      <span class="visually-hidden">Account</span>
      <span class="bar-account ellipsis">{printable(account)}</span>
      <Icon name="down" />
    </Menu>
  );
}

/** One line if the appliance does not answer, or is newer than this page. */
function ConnectionLine() {
  const state = useStore(connection);
  const isOld = useStore(isUpgraded);
  return (
    <div class="connection" role="status">
      {state === "away" ? <p>The appliance does not answer. This page reconnects by itself.</p> : null}
      {state === "there" && isOld ? (
        <p>
          The appliance was upgraded.{" "}
          <button class="text-button" type="button" onClick={() => location.reload()}>
            Reload the page
          </button>
        </p>
      ) : null}
    </div>
  );
}

/** The view. The focus goes to it when another place is shown, so that keys and screen readers begin there. */
function Main({ children }: { readonly children: ComponentChildren }) {
  const { path } = useRoute();
  const main = useRef<HTMLElement>(null);
  const previous = useRef(path);
  // Before the browser paints: later it would take the focus from a field of the view.
  useLayoutEffect(() => {
    if (previous.current === path) return;
    previous.current = path;
    main.current?.focus({ preventScroll: true });
  }, [path]);
  return (
    <main ref={main} class="main stack fill gap-5 shrink" id="main" tabIndex={-1}>
      {children}
    </main>
  );
}
