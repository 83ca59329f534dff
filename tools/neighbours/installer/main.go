// The installer of Istio's node agent without the rest of the agent: `installer DIRECTORY MODE`, MODE chained or owned.
//
// It runs install.Installer, which is what writes CNI configuration, until SIGTERM, and then cleans up as the agent does at an uninstall.
// DIRECTORY has bin (where the node's plugins are), net.d (its CNI configuration), source (the plugin to install) and run.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"istio.io/istio/cni/pkg/config"
	"istio.io/istio/cni/pkg/install"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "installer DIRECTORY chained|owned")
		os.Exit(2)
	}
	directory := os.Args[1]
	cfg := &config.InstallConfig{
		MountedCNINetDir:      filepath.Join(directory, "net.d"),
		CNIAgentRunDir:        filepath.Join(directory, "run"),
		CNIBinSourceDir:       filepath.Join(directory, "source"),
		CNIBinTargetDirs:      []string{filepath.Join(directory, "bin")},
		K8sServiceAccountPath: filepath.Join(directory, "account"),
		K8sServiceHost:        "127.0.0.1",
		K8sServicePort:        "1",
		SkipTLSVerify:         true,
		KubeconfigMode:        0o600,
		ChainedCNIPlugin:      true,
		PluginLogLevel:        "info",
		PodNamespace:          "istio-system",
	}
	if os.Args[2] == "owned" {
		cfg.AmbientEnabled = true // Istio writes a file of its own in ambient mode only
		cfg.IstioOwnedCNIConfig = true
		cfg.IstioOwnedCNIConfigFilename = "02-istio-cni.conflist"
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	isReady := &atomic.Value{}
	installer := install.NewInstaller(cfg, isReady)
	if err := installer.Run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := installer.Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
